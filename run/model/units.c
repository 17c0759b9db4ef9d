// units.c - see units.h.
#include "run/model/units.h"

// A rank with n units of everything.
static Shape shape_of_units(const Shape* shape, int n) {
    Shape s = *shape;
    s.heads = n * shape_queries(shape);
    s.kv_heads = s.hidden = n;
    return s;
}

Runs unit_rows(const Shape* shape, SublayerId id, int n) {
    Shape s = shape_of_units(shape, n);
    return shape_runs(&s, param_table[sublayers[id].weight[0]].rows);
}

int unit_columns(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    return shape_runs(&s, param_table[sublayers[id].weight[1]].cols).size[0];
}

size_t unit_elems(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    const Sublayer* sub = &sublayers[id];
    return shape_param(&s, sub->weight[0], 0).elems + shape_param(&s, sub->bias[0], 0).elems +
           shape_param(&s, sub->weight[1], 0).elems;
}
