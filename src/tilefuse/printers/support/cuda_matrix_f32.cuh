// Products of f32 operands on the matrix unit: one product of tf32 (11 bits), or three of the operands' halves.
//   x = high + low,  high = x rounded to tf32,  low = x - high (exact; the unit reads its first 11 bits)
//   left * right = low * high + high * low + high * high, without low * low: 2^-22 of the product
// Lanes hold elements 2t and 2t + 1 of eight inner ones (t = lane % 4) where the unit's layout says t and t + 4: any order serves as long
// as both operands keep to it, and in this one accumulators are left fragments, and rows are read in pairs.
// Source: Ootomo and Yokota 2022, arXiv:2203.03341; PTX ISA, mma.sync.aligned.m16n8k8 of tf32.

//@ tf_mma_tf32
TF_INLINE void tf_mma_tf32(float* sum, const unsigned int (&a)[4], const unsigned int (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//@ tf_halves
// High and low parts of numbers; PRODUCTS is 1 where only the high ones are used. What becomes infinite by rounding, and low parts of
// infinite numbers, make NaN of the sum: `tf_careful_product` then computes it again.
template <int PRODUCTS, int N> TF_INLINE void tf_halves(const float (&x)[N], unsigned int (&high)[N], unsigned int (&low)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (PRODUCTS == 1) {
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high[n]) : "f"(x[n]));
    } else {
      high[n] = (__float_as_uint(x[n]) + 0x1000u) & 0xffffe000u;
      low[n] = __float_as_uint(x[n] - __uint_as_float(high[n]));
    }
  }
}

//@ tf_careful_halves
// The same for any numbers: `high` of what is not finite is the number itself, for the product of high parts; `near` is 0 there.
template <int N> TF_INLINE void tf_careful_halves(const float (&x)[N], unsigned int (&high)[N], unsigned int (&near)[N], unsigned int (&low)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const unsigned int bits = __float_as_uint(x[n]), rounded = (bits + 0x1000u) & 0xffffe000u;
    const bool finite = (bits & 0x7fffffffu) < 0x7f800000u;
    near[n] = !finite ? 0u : (rounded & 0x7f800000u) == 0x7f800000u ? bits & 0xffffe000u : rounded;
    low[n] = finite ? __float_as_uint(x[n] - __uint_as_float(near[n])) : 0u;
    high[n] = finite ? near[n] : (bits & 0x7fffffffu) == 0x7f800000u ? bits : 0x7fc00000u;
  }
}

//@ tf_tf32_rest
// What a warpgroup product leaves of a number of which it reads the first 11 bits, rounded so that it reads the nearest 11 bits of the rest.
TF_INLINE float tf_tf32_rest(float x) {
  const float rest = x - __uint_as_float(__float_as_uint(x) & 0xffffe000u);
  return __uint_as_float(__float_as_uint(rest) + 0x1000u);
}

//@ tf_left_values
// A left fragment's numbers: rows lane / 4 and 8 below, at the lane's first inner element, then at its second; 0 from `rest` on.
// PAIRS: both lie in one vector of 8 bytes.
template <bool TURNED, bool PAIRS> TF_INLINE void tf_left_values(float (&a)[4], const float* left, int stride, int rest) {
  const int lane = threadIdx.x & 31, row = lane >> 2, k = 2 * (lane & 3);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const from = TURNED ? left + k * stride + row + 8 * half : left + (row + 8 * half) * stride + k;
    if (PAIRS && !TURNED) {
      const float2 both = k < rest ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
      a[half] = both.x, a[2 + half] = both.y;
    } else {
      a[half] = k < rest ? from[0] : 0.0f;
      a[2 + half] = k + 1 < rest ? from[TURNED ? stride : 1] : 0.0f;
    }
  }
}

//@ tf_right_values
// A right fragment's numbers: column lane / 4 at the lane's two inner elements; 0 from `rest` and from column `columns` on.
template <bool TURNED, bool PAIRS> TF_INLINE void tf_right_values(float (&b)[2], const float* right, int stride, int rest, int columns) {
  const int lane = threadIdx.x & 31, column = lane >> 2, k = 2 * (lane & 3);
  const float* const from = TURNED ? right + column * stride + k : right + k * stride + column;
  if (PAIRS && TURNED) {
    const float2 both = k < rest && column < columns ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
    b[0] = both.x, b[1] = both.y;
  } else {
    b[0] = k < rest && column < columns ? from[0] : 0.0f;
    b[1] = k + 1 < rest && column < columns ? from[TURNED ? 1 : stride] : 0.0f;
  }
}

//@ tf_f32_steps
// `rest` inner elements (8 or fewer) of a warp's M x N tiles: `small` takes the products with low parts (it may be `sum`).
template <int PRODUCTS, int M, int N, bool HELD, bool LEFT_TURNED, bool LEFT_PAIRS, bool RIGHT_TURNED, bool RIGHT_PAIRS, int COLUMNS, int HELD_STEPS>
TF_INLINE void tf_f32_steps(float* sum, float* small, const float* left, int left_stride, const float* right, int right_stride, int k, int rest) {
  // Tiles whose instructions alternate, so that few of them wait for the sums of the one before.
  constexpr int TOGETHER = M == 1 ? 4 : M == 2 ? 2 : 1;
  unsigned int a[M][4], a_low[M][4];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    float x[4];
    if (HELD) {
      const float* const tile = left + (m * HELD_STEPS + k / 8) * 4;
      x[0] = tile[0], x[1] = tile[2], x[2] = tile[1], x[3] = tile[3];
    } else {
      tf_left_values<LEFT_TURNED, LEFT_PAIRS>(x, LEFT_TURNED ? left + k * left_stride + 16 * m : left + 16 * m * left_stride + k, left_stride, rest);
    }
    tf_halves<PRODUCTS>(x, a[m], a_low[m]);
  }
#pragma unroll
  for (int first = 0; first < N; first += TOGETHER) {
    unsigned int b[TOGETHER][2], b_low[TOGETHER][2];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j)
      if (first + j < N) {
        float x[2];
        const int n = 8 * (first + j);
        tf_right_values<RIGHT_TURNED, RIGHT_PAIRS>(x, RIGHT_TURNED ? right + n * right_stride + k : right + k * right_stride + n, right_stride,
                                                   rest, COLUMNS - n);
        tf_halves<PRODUCTS>(x, b[j], b_low[j]);
      }
    if (PRODUCTS == 3) {
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j)
#pragma unroll
        for (int m = 0; m < M; ++m)
          if (first + j < N) tf_mma_tf32(small + (m * N + first + j) * 4, a_low[m], b[j]);
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j)
#pragma unroll
        for (int m = 0; m < M; ++m)
          if (first + j < N) tf_mma_tf32(small + (m * N + first + j) * 4, a[m], b_low[j]);
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j)
#pragma unroll
      for (int m = 0; m < M; ++m)
        if (first + j < N) tf_mma_tf32(sum + (m * N + first + j) * 4, a[m], b[j]);
  }
}

//@ tf_careful_product
// The same sums tile by tile from `start`, for numbers of any size: infinite products keep what f32 makes of them. Rarely run, so short.
template <int M, int N, bool HELD, bool LEFT_TURNED, bool LEFT_PAIRS, bool RIGHT_TURNED, bool RIGHT_PAIRS, int COLUMNS, int INNER>
TF_INLINE void tf_careful_product(float* sum, const float* start, const float* left, int left_stride, const float* right, int right_stride) {
  constexpr int STEPS = (INNER + 7) / 8;
  float kept[4 * M * N], held[HELD ? 4 * M * STEPS : 1];
#pragma unroll
  for (int n = 0; n < 4 * M * N; ++n) kept[n] = start[n];
  if (HELD) {
#pragma unroll
    for (int n = 0; n < 4 * M * STEPS; ++n) held[n] = left[n];
  }
#pragma unroll 1
  for (int tile = 0; tile < M * N; ++tile) {
    const int m = tile / N, n = 8 * (tile % N);
    float high[4], small[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      // Chosen one by one: a subscript known only at run time would put the sums of every product, careful or not, into memory.
      high[q] = kept[q];
#pragma unroll
      for (int t = 1; t < M * N; ++t) high[q] = t == tile ? kept[4 * t + q] : high[q];
    }
#pragma unroll 1
    for (int k = 0; k < INNER; k += 8) {
      float x[4], y[2];
      unsigned int a[4], a_near[4], a_low[4], b[2], b_near[2], b_low[2];
      if (HELD) {
        const float* const from = held + (m * STEPS + k / 8) * 4;
        x[0] = from[0], x[1] = from[2], x[2] = from[1], x[3] = from[3];
      } else {
        tf_left_values<LEFT_TURNED, LEFT_PAIRS>(x, LEFT_TURNED ? left + k * left_stride + 16 * m : left + 16 * m * left_stride + k, left_stride,
                                                INNER - k);
      }
      tf_right_values<RIGHT_TURNED, RIGHT_PAIRS>(y, RIGHT_TURNED ? right + n * right_stride + k : right + k * right_stride + n, right_stride,
                                                 INNER - k, COLUMNS - n);
      tf_careful_halves(x, a, a_near, a_low);
      tf_careful_halves(y, b, b_near, b_low);
      tf_mma_tf32(small, a_low, b_near);
      tf_mma_tf32(small, a_near, b_low);
      tf_mma_tf32(high, a, b);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float made = (__float_as_uint(high[q]) & 0x7fffffffu) < 0x7f800000u ? high[q] + small[q] : high[q];
#pragma unroll
      for (int t = 0; t < M * N; ++t) kept[4 * t + q] = t == tile ? made : kept[4 * t + q];
    }
  }
#pragma unroll
  for (int n = 0; n < 4 * M * N; ++n) sum[n] = kept[n];
}

//@ tf_f32_product
// One warp: sum[M * N tiles] += left[16 * M, INNER] * right[INNER, COLUMNS]; HELD: left lies in the lanes' registers as sums do.
template <int PRODUCTS, int M, int N, bool HELD, bool LEFT_TURNED, bool LEFT_PAIRS, bool RIGHT_TURNED, bool RIGHT_PAIRS, int COLUMNS, int INNER>
TF_INLINE void tf_f32_product(float* sum, const float* left, int left_stride, const float* right, int right_stride) {
  constexpr int STEPS = (INNER + 7) / 8, WHOLE = INNER / 8 * 8;
  // Few tiles have sums of their own for products with low parts: three times as many instructions in flight.
  constexpr bool APART = PRODUCTS == 3 && M * N <= 4;
  constexpr int UNROLLED = HELD || M * N * STEPS <= 96 ? STEPS : M * N >= 16 ? 2 : 4;
  float start[4 * M * N], apart[APART ? 4 * M * N : 1];
#pragma unroll
  for (int n = 0; n < 4 * M * N; ++n) start[n] = sum[n];
#pragma unroll
  for (int n = 0; n < (APART ? 4 * M * N : 1); ++n) apart[n] = 0.0f;
  float* const small = APART ? apart : sum;
#pragma unroll UNROLLED
  for (int k = 0; k < WHOLE; k += 8)
    tf_f32_steps<PRODUCTS, M, N, HELD, LEFT_TURNED, LEFT_PAIRS, RIGHT_TURNED, RIGHT_PAIRS, COLUMNS, STEPS>(
        sum, small, left, left_stride, right, right_stride, k, 8);
  if (WHOLE < INNER)
    tf_f32_steps<PRODUCTS, M, N, HELD, LEFT_TURNED, LEFT_PAIRS, RIGHT_TURNED, RIGHT_PAIRS, COLUMNS, STEPS>(
        sum, small, left, left_stride, right, right_stride, WHOLE, INNER - WHOLE);
  if (PRODUCTS == 3) {
    bool odd = false;
#pragma unroll
    for (int n = 0; n < 4 * M * N; n += 2) {
      if (APART) sum[n] += apart[n], sum[n + 1] += apart[n + 1];
      odd |= !(sum[n] <= sum[n + 1] || sum[n] > sum[n + 1]);
    }
    if (__any_sync(0xffffffffu, odd))
      tf_careful_product<M, N, HELD, LEFT_TURNED, LEFT_PAIRS, RIGHT_TURNED, RIGHT_PAIRS, COLUMNS, INNER>(
          sum, start, left, left_stride, right, right_stride);
  }
}
