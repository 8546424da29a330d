// Attention by cuDNN: products, scale, mask and softmax as one graph, for which it has one kernel. Other forms are left to three steps.
#include "cuda_attention.h"

#ifndef UNFUSED_ATTENTION
#include "cuda_records.h"
#endif

namespace @name@_parts {

#ifdef UNFUSED_ATTENTION

std::unique_ptr<FusedAttention> fused_attention(Libraries&, const AttentionShape&) { return nullptr; }

#else

namespace {

// Numbers of the graph's tensors: what a run gives, then what only the graph has.
enum Tensor : int64_t { q_number = 1, k_number, v_number, y_number, scale_number, nothing_number, first_inner };

using Extents = std::vector<int64_t>;

Extents row_major(const Extents& extents) {
  Extents strides(extents.size(), 1);
  for (size_t d = extents.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * extents[d + 1];
  return strides;
}

// A graph's tensors and operations while it is written.
class Graph {
 public:
  const Record& outside(int64_t number, Dtype dtype, const Extents& extents, const Extents& strides) {
    tensors_.push_back(std::make_unique<Record>(tensor(number, dtype, extents, strides)));
    return *tensors_.back();
  }
  // A number that a run gives from the host's memory.
  const Record& scalar(int64_t number) { return made(number, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, false, true); }
  const Record& inner(cudnnDataType_t type, const Extents& extents) { return made(next_++, type, extents, true, false); }

  void product(const Record& a, const Record& b, const Record& c) {
    Record how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &single_);
    check_cudnn(how.close(), "a product of attention");
    Record& operation = add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, std::move(how), CUDNN_ATTR_OPERATION_MATMUL_DESC);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    check_cudnn(operation.close(), "a product of attention");
  }
  void pointwise(cudnnPointwiseMode_t mode, const Record& x, const Record* b, const Record& y, const Record* chosen_by = nullptr,
                 int64_t axis = -1) {
    Record how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &single_);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    check_cudnn(how.close(), "an operation of attention");
    Record& operation = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, std::move(how), CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (chosen_by) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *chosen_by);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    check_cudnn(operation.close(), "an operation of attention");
  }
  void reduction(cudnnReduceTensorOp_t kind, const Record& x, const Record& y) {
    Record how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &kind);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &single_);
    check_cudnn(how.close(), "a reduction of attention");
    Record& operation = add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, std::move(how), CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    check_cudnn(operation.close(), "a reduction of attention");
  }
  std::vector<const Record*> operations() const {
    std::vector<const Record*> found;
    for (const auto& operation : operations_) found.push_back(operation.get());
    return found;
  }

 private:
  const Record& made(int64_t number, cudnnDataType_t type, const Extents& extents, bool is_virtual, bool by_value) {
    tensors_.push_back(std::make_unique<Record>(CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    Record& record = *tensors_.back();
    record.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    record.set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents);
    record.set(CUDNN_ATTR_TENSOR_STRIDES, row_major(extents));
    record.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number);
    record.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    record.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    record.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    check_cudnn(record.close(), "a tensor of attention");
    return record;
  }
  Record& add(cudnnBackendDescriptorType_t kind, Record&& how, cudnnBackendAttributeName_t name) {
    kinds_.push_back(std::make_unique<Record>(std::move(how)));
    operations_.push_back(std::make_unique<Record>(kind));
    operations_.back()->set(name, *kinds_.back());
    return *operations_.back();
  }
  const cudnnDataType_t single_ = CUDNN_DATA_FLOAT;
  int64_t next_ = first_inner;
  std::vector<std::unique_ptr<Record>> tensors_, kinds_, operations_;
};

class OfCudnn final : public FusedAttention {
 public:
  OfCudnn(std::unique_ptr<Record> plan, int64_t num_bytes, const AttentionShape& shape)
      : plan_(std::move(plan)), scratch_bytes_(num_bytes), scale_(float(shape.scale)), causal_(shape.causal) {}
  size_t scratch_bytes() const override { return size_t(scratch_bytes_); }
  void run(Libraries& libraries, const void* q, const void* k, const void* v, void* y, void* scratch, cudaStream_t stream) override {
    const float nothing = -1e30f;
    std::vector<int64_t> numbers = {q_number, k_number, v_number, y_number, scale_number};
    std::vector<const void*> pointers = {q, k, v, y, &scale_};
    if (causal_) {
      numbers.push_back(nothing_number);
      pointers.push_back(&nothing);
    }
    execute(static_cast<cudnnHandle_t>(libraries.convolution_handle()), *plan_, numbers, pointers, scratch, stream);
  }

 private:
  std::unique_ptr<Record> plan_;
  int64_t scratch_bytes_;
  float scale_;
  bool causal_;
};

}  // namespace

std::unique_ptr<FusedAttention> fused_attention(Libraries& libraries, const AttentionShape& s) {
  const bool is_half = s.dtype == Dtype::f16 || s.dtype == Dtype::bf16;
  const bool in_rows = s.q_column == 1 && s.k_column == 1 && s.v_column == 1 && s.y_column == 1;
  if (!is_half || !in_rows || s.mask || s.batches.size() > 2 || s.alignment < 16 || s.depth % 8 || s.width % 8) return nullptr;
  AttentionBatch outer = {1, 0, 0, 0, 0, 0}, inner = {1, 0, 0, 0, 0, 0};
  if (!s.batches.empty()) outer = s.batches.front();
  if (s.batches.size() == 2) inner = s.batches.back();
  const int64_t n = outer.extent, h = inner.extent;
  // The distance between batches of which there is one means nothing, but must not be 0.
  const auto strides = [&](int64_t by_n, int64_t by_h, int64_t row, int64_t column, int64_t whole) {
    return Extents{n > 1 ? by_n : h * whole, h > 1 ? by_h : whole, row, column};
  };
  if ((n > 1 && !(outer.q && outer.k && outer.v && outer.y)) || (h > 1 && !(inner.q && inner.k && inner.v && inner.y))) return nullptr;
  try {
    Graph graph;
    const cudnnDataType_t half = cudnn_type(s.dtype), single = CUDNN_DATA_FLOAT;
    const Record& q = graph.outside(q_number, s.dtype, {n, h, s.rows, s.depth}, strides(outer.q, inner.q, s.q_row, 1, s.rows * s.q_row));
    const Record& k = graph.outside(k_number, s.dtype, {n, h, s.depth, s.keys}, strides(outer.k, inner.k, 1, s.k_row, s.keys * s.k_row));
    const Record& v = graph.outside(v_number, s.dtype, {n, h, s.keys, s.width}, strides(outer.v, inner.v, s.v_row, 1, s.keys * s.v_row));
    const Record& y = graph.outside(y_number, s.dtype, {n, h, s.rows, s.width}, strides(outer.y, inner.y, s.y_row, 1, s.rows * s.y_row));
    const Extents all = {n, h, s.rows, s.keys}, each = {n, h, s.rows, 1};
    const Record& scores = graph.inner(single, all);
    graph.product(q, k, scores);
    const Record& scaled = graph.inner(single, all);
    graph.pointwise(CUDNN_POINTWISE_MUL, scores, &graph.scalar(scale_number), scaled);
    const Record* seen = &scaled;
    if (s.causal) {
      const Record& row = graph.inner(CUDNN_DATA_INT32, all);
      graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, scaled, nullptr, row, nullptr, 2);
      const Record& column = graph.inner(CUDNN_DATA_INT32, all);
      graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, scaled, nullptr, column, nullptr, 3);
      const Record& is_seen = graph.inner(CUDNN_DATA_BOOLEAN, all);
      graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, &column, is_seen);
      const Record& masked = graph.inner(single, all);
      graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scaled, &graph.scalar(nothing_number), masked, &is_seen);
      seen = &masked;
    }
    const Record& largest = graph.inner(single, each);
    graph.reduction(CUDNN_REDUCE_TENSOR_MAX, *seen, largest);
    const Record& shifted = graph.inner(single, all);
    graph.pointwise(CUDNN_POINTWISE_SUB, *seen, &largest, shifted);
    const Record& powers = graph.inner(single, all);
    graph.pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, powers);
    const Record& sums = graph.inner(single, each);
    graph.reduction(CUDNN_REDUCE_TENSOR_ADD, powers, sums);
    const Record& weights = graph.inner(half, all);
    graph.pointwise(CUDNN_POINTWISE_DIV, powers, &sums, weights);
    graph.product(weights, v, y);
    int64_t num_bytes = 0;
    auto plan = plan_of(static_cast<cudnnHandle_t>(libraries.convolution_handle()), graph.operations(), false, num_bytes);
    if (!plan) return nullptr;
    return std::make_unique<OfCudnn>(std::move(plan), num_bytes, s);
  } catch (const Failure&) {
    return nullptr;  // a version that lacks one of the operations
  }
}

#endif

}  // namespace @name@_parts
