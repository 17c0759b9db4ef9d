// checked.c - build/.../train_checked: ./train that proves every plan and every schedule before it runs. Its option
// --plan random runs any valid plan in place of the planner's, and is not saved with a run.
#include <string.h>

#include "test/checks.h"

int train_main(int argc, char** argv);

int main(int argc, char** argv) {
    static PlanChecks checks = {NULL, plan_check, schedule_check};
    int n = 1;
    for (int i = 1; i < argc; i++) {
        int is_random = i + 1 < argc && !strcmp(argv[i], "--plan") && !strcmp(argv[i + 1], "random");
        if (is_random) checks.plan = plan_random, i++;
        else argv[n++] = argv[i];
    }
    argv[n] = NULL;
    plan_checks = &checks;
    return train_main(n, argv);
}
