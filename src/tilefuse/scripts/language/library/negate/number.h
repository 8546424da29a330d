// c = -a, of a number

TF_ROUTINE void compute(REAL a, REAL* c, int tx, int ty) { c[0] = -a; }
