// c = a / b, of numbers

TF_ROUTINE void compute(REAL a, REAL b, REAL* c, int tx, int ty) { c[0] = a / b; }
