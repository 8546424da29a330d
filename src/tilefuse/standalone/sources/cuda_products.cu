// Matrix products by cuBLASLt. A row-major d = a b is the column-major d^T = b^T a^T; that is what the library is asked for.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>

#include "@name@.h"
#include "cuda_library.h"

namespace @name@_parts {

namespace {

constexpr size_t most_scratch_bytes = size_t(32) << 20;

void check_product(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(@NAME@_DEVICE_ERROR, std::string(call) + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return CUDA_R_64F;
    case Dtype::f32: return CUDA_R_32F;
    case Dtype::f16: return CUDA_R_16F;
    case Dtype::bf16: return CUDA_R_16BF;
    default: fail(@NAME@_INTERNAL_ERROR, "a matrix product of a type that cuBLASLt lacks");
  }
}

// A matrix in memory, as columns: `transposed` where its rows lie one after the other instead.
struct Operand {
  int64_t rows, columns, leading;
  bool transposed;
};

Operand operand(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  const bool by_columns = row_stride == 1 || rows == 1;
  const int64_t leading = by_columns ? column_stride : row_stride;
  const int64_t least = by_columns ? rows : columns;
  // The distance of rows or columns of which there is one means nothing.
  return Operand{by_columns ? rows : columns, by_columns ? columns : rows, std::max(leading, std::max<int64_t>(least, 1)), !by_columns};
}

class Layout {
 public:
  Layout(const Operand& matrix, cudaDataType_t type, int64_t count, int64_t distance) {
    check_product(cublasLtMatrixLayoutCreate(&layout_, type, uint64_t(matrix.rows), uint64_t(matrix.columns), matrix.leading), "a layout");
    const int32_t batches = int32_t(count);
    cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches);
    cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance, sizeof distance);
  }
  Layout(const Layout&) = delete;
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

}  // namespace

struct Product::State {
  ProductShape shape;
  cublasLtMatmulDesc_t description = nullptr;
  std::unique_ptr<Layout> first, second, result;
  cublasLtMatmulAlgo_t algorithm;
  size_t scratch_bytes = 0;
  bool bias_inside = false;
  bool swapped = false;
  // Batch dimensions before the one that the library walks itself.
  std::vector<Batch> outer;
  CopyShape spread;  // of a bias that the library does not add by itself

  ~State() {
    if (description) cublasLtMatmulDescDestroy(description);
  }
};

Product::Product() = default;
Product::~Product() = default;
Product::Product(Product&&) noexcept = default;

size_t Product::scratch_bytes() const { return state_ ? state_->scratch_bytes : 0; }

void Product::prepare(Libraries& libraries, const ProductShape& shape) {
  state_ = std::make_unique<State>();
  State& s = *state_;
  s.shape = shape;
  s.swapped = shape.d_column == 1 || shape.columns == 1;
  const cudaDataType_t type = type_of(shape.dtype);
  Batch inner = {1, 0, 0, 0, 0};
  s.outer = shape.batches;
  if (!s.outer.empty()) {
    inner = s.outer.back();
    s.outer.pop_back();
  }
  const Operand a = s.swapped ? operand(shape.inner, shape.rows, shape.a_inner, shape.a_row)
                              : operand(shape.rows, shape.inner, shape.a_row, shape.a_inner);
  const Operand b = s.swapped ? operand(shape.columns, shape.inner, shape.b_column, shape.b_inner)
                              : operand(shape.inner, shape.columns, shape.b_inner, shape.b_column);
  const Operand d = s.swapped ? operand(shape.columns, shape.rows, shape.d_column, shape.d_row)
                              : operand(shape.rows, shape.columns, shape.d_row, shape.d_column);
  if (d.transposed) fail(@NAME@_INTERNAL_ERROR, "a product whose result has gaps between neighbours");
  const Operand& one = s.swapped ? b : a;
  const Operand& other = s.swapped ? a : b;
  s.first = std::make_unique<Layout>(one, type, inner.extent, s.swapped ? inner.b : inner.a);
  s.second = std::make_unique<Layout>(other, type, inner.extent, s.swapped ? inner.a : inner.b);
  s.result = std::make_unique<Layout>(d, shape.wide_result ? CUDA_R_32F : type, inner.extent, inner.d);
  const cublasComputeType_t compute = shape.dtype == Dtype::f64 ? CUBLAS_COMPUTE_64F
                                      : shape.dtype == Dtype::f32 && shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check_product(cublasLtMatmulDescCreate(&s.description, compute, shape.dtype == Dtype::f64 ? CUDA_R_64F : CUDA_R_32F), "a product");
  const cublasOperation_t first_turn = one.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second_turn = other.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasLtMatmulDescSetAttribute(s.description, CUBLASLT_MATMUL_DESC_TRANSA, &first_turn, sizeof first_turn);
  cublasLtMatmulDescSetAttribute(s.description, CUBLASLT_MATMUL_DESC_TRANSB, &second_turn, sizeof second_turn);
  s.bias_inside = shape.has_bias && s.swapped && shape.bias_row == 0 && shape.bias_column == 1 && inner.bias == 0 &&
                  shape.dtype != Dtype::f64 && std::all_of(s.outer.begin(), s.outer.end(), [](const Batch& o) { return !o.bias; });
  if (s.bias_inside) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    check_product(cublasLtMatmulDescSetAttribute(s.description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue), "a bias");
  } else if (shape.has_bias) {
    s.spread.itemsize = itemsize(shape.dtype);
    for (const Batch& batch : shape.batches) {
      s.spread.extents.push_back(batch.extent);
      s.spread.from.push_back(batch.bias);
      s.spread.to.push_back(batch.d);
    }
    s.spread.extents.insert(s.spread.extents.end(), {shape.rows, shape.columns});
    s.spread.from.insert(s.spread.from.end(), {shape.bias_row, shape.bias_column});
    s.spread.to.insert(s.spread.to.end(), {shape.d_row, shape.d_column});
  }
  cublasLtMatmulPreference_t preference;
  check_product(cublasLtMatmulPreferenceCreate(&preference), "a preference");
  const size_t most = most_scratch_bytes;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
  const uint32_t alignment = uint32_t(shape.alignment);
  for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(preference, name, &alignment, sizeof alignment);
  }
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(libraries.product_handle()), s.description, s.first->get(),
                                     s.second->get(), s.result->get(), s.result->get(), preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || !count) {
    fail(@NAME@_DEVICE_ERROR, "cuBLASLt has no algorithm for a product of " + std::to_string(shape.rows) + " x " +
                                  std::to_string(shape.inner) + " x " + std::to_string(shape.columns));
  }
  s.algorithm = found.algo;
  s.scratch_bytes = found.workspaceSize;
}

void Product::run(Libraries& libraries, const void* a, const void* b, const void* bias, void* d, void* scratch, cudaStream_t stream) {
  State& s = *state_;
  if (s.bias_inside) {
    check_product(cublasLtMatmulDescSetAttribute(s.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), "a bias");
  } else if (s.shape.has_bias) {
    copy(s.spread, bias, d, stream);
  }
  const float one = 1, beta = s.shape.has_bias && !s.bias_inside ? 1 : 0;
  const double one_wide = 1, beta_wide = beta;
  const bool wide = s.shape.dtype == Dtype::f64;
  const int64_t bytes = itemsize(s.shape.dtype);
  int64_t count = 1;
  for (const Batch& batch : s.outer) count *= batch.extent;
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n, at_a = 0, at_b = 0, at_d = 0;
    for (size_t i = s.outer.size(); i-- > 0;) {
      const int64_t place = rest % s.outer[i].extent;
      rest /= s.outer[i].extent;
      at_a += place * s.outer[i].a;
      at_b += place * s.outer[i].b;
      at_d += place * s.outer[i].d;
    }
    const char* const from_a = static_cast<const char*>(a) + at_a * bytes;
    const char* const from_b = static_cast<const char*>(b) + at_b * bytes;
    char* const to = static_cast<char*>(d) + at_d * (s.shape.wide_result ? 4 : bytes);
    check_product(cublasLtMatmul(static_cast<cublasLtHandle_t>(libraries.product_handle()), s.description,
                                 wide ? static_cast<const void*>(&one_wide) : &one, s.swapped ? from_b : from_a, s.first->get(),
                                 s.swapped ? from_a : from_b, s.second->get(), wide ? static_cast<const void*>(&beta_wide) : &beta, to,
                                 s.result->get(), to, s.result->get(), &s.algorithm, scratch, s.scratch_bytes, stream),
                  "cublasLtMatmul");
  }
}

}  // namespace @name@_parts
