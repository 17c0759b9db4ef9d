// saved.c - the options that a checkpoint keeps; see read.h.
#include <limits.h>
#include <string.h>

#include "plan/base/words.h"
#include "plan/options/read.h"
#include "plan/options/table.h"

// Ways to divide ranks: one that is given now takes the place of what was saved of the others.
static int is_overruled(const Config* c, const Option* o) {
    int list = config_was_given(c, "--strategies") && c->strategies && strcmp(c->strategies, "none") != 0;
    int file = config_was_given(c, "--layout"), single = config_was_given(c, "--tp") || config_was_given(c, "--pp");
    size_t at = o->value.at;
    if (at == offsetof(Config, layout))
        return list || single || config_was_given(c, "--zero") || config_was_given(c, "--recompute");
    if (at == offsetof(Config, strategies)) return file || single;
    if (at == offsetof(Config, zero)) return list;
    return (at == offsetof(Config, tp) || at == offsetof(Config, pp)) && (list || file);
}

int config_restore(Config* c, const char* name, const char* value, Err err) {
    const Option* o = option_find(name);
    if (!o || !(o->is & RUN) || c->given[o - config_options]) return 0;
    if (is_overruled(c, o)) {
        if (o->value.type == TEXT) c->overruled = o->value.name;
        return 0;
    }
    Field field = o->value;
    if ((o->is & SHAPE) == SHAPE) field.most = field.type == REAL ? 1e300 : INT_MAX;
    return option_set(c, &field, value, err);
}

void config_visit(const Config* c, void (*visit)(void* context, const char* name, const char* value), void* context) {
    static char value[1 << 17];  // layouts have a line a layer
    for (const Option* o = config_options; *o->value.name; o++) {
        const PathList* list = (const PathList*)((const char*)c + o->value.at);
        if (!(o->is & RUN)) continue;
        for (int p = 0; o->value.type == PATHS && p < list->n; p++) visit(context, o->value.name, list->paths[p]);
        field_print(&o->value, c, value, sizeof value);
        if (value[0]) visit(context, o->value.name, value);
    }
}
