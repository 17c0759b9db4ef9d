// units.h - the units of a sublayer as rows and columns of its linears: what ranks divide and give away.
#pragma once
#include "run/model/model.h"

// Rows of Column and columns of Row that belong to n units of a rank with this shape.
Runs unit_rows(const Shape* shape, SublayerId id, int n);
int unit_columns(const Shape* shape, SublayerId id);  // of one
// Elements of both linears, of Column's bias too, in one unit.
size_t unit_elems(const Shape* shape, SublayerId id);
