// cuDNN's records: tensors, operations, graphs, plans.
#pragma once

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "@name@.h"
#include "cuda_library.h"

// Older versions ask for attributes that newer ones no longer need.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace @name@_parts {

inline void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(@NAME@_DEVICE_ERROR, std::string(call) + ": " + cudnnGetErrorString(status));
}

// One of cuDNN's records, which are made, filled and closed.
class Record {
 public:
  explicit Record(cudnnBackendDescriptorType_t kind) { check_cudnn(cudnnBackendCreateDescriptor(kind, &record_), "a record"); }
  Record(Record&& other) noexcept : record_(other.record_) { other.record_ = nullptr; }
  Record& operator=(Record&& other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~Record() {
    if (record_) cudnnBackendDestroyDescriptor(record_);
  }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    check_cudnn(cudnnBackendSetAttribute(record_, name, type, count, values), "an attribute");
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, int64_t(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, const Record& other) { set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.record_); }
  cudnnStatus_t close() { return cudnnBackendFinalize(record_); }
  cudnnBackendDescriptor_t get() const { return record_; }

 private:
  cudnnBackendDescriptor_t record_ = nullptr;
};

inline cudnnDataType_t cudnn_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return CUDNN_DATA_DOUBLE;
    case Dtype::f32: return CUDNN_DATA_FLOAT;
    case Dtype::f16: return CUDNN_DATA_HALF;
    case Dtype::bf16: return CUDNN_DATA_BFLOAT16;
    default: fail(@NAME@_INTERNAL_ERROR, "a type that cuDNN lacks");
  }
}

inline Record tensor(int64_t number, Dtype dtype, const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  Record made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = cudnn_type(dtype);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
  check_cudnn(made.close(), "a tensor");
  return made;
}

// Whether an engine rounds f32 operands to fewer bits.
inline bool rounds_operands(const Record& configuration) {
  Record engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
                    "an engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check_cudnn(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                             CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()),
                    "an engine's notes");
  return std::any_of(notes.begin(), notes.begin() + count, [](cudnnBackendNumericalNote_t note) {
    return note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
  });
}

inline std::vector<Record> configurations(const Record& graph, cudnnBackendHeurMode_t mode) {
  Record heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  std::vector<Record> found;
  if (heuristics.close() != CUDNN_STATUS_SUCCESS) return found;
  int64_t count = 0;
  cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t n = 0; n < count; ++n) {
    found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(found.back().get());
  }
  if (count) {
    check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                               raw.data()),
                      "plans");
  }
  found.erase(found.begin() + count, found.end());
  return found;
}

// The first plan of the heuristics that can be made for operations; null where there is none.
inline std::unique_ptr<Record> plan_of(cudnnHandle_t handle, const std::vector<const Record*>& operations, bool exact, int64_t& scratch_bytes) {
  Record graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Record* operation : operations) raw.push_back(operation->get());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(raw.size()), raw.data());
  if (graph.close() != CUDNN_STATUS_SUCCESS) return nullptr;
  for (const auto heuristics : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Record& configuration : configurations(graph, heuristics)) {
      if (exact && rounds_operands(configuration)) continue;
      auto plan = std::make_unique<Record>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
      plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      if (plan->close() != CUDNN_STATUS_SUCCESS) continue;
      int64_t count = 0;
      check_cudnn(cudnnBackendGetAttribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                           &scratch_bytes),
                  "a plan's workspace");
      return plan;
    }
  }
  return nullptr;
}

// Runs a plan on tensors of the given numbers.
inline void execute(cudnnHandle_t handle, const Record& plan, const std::vector<int64_t>& numbers, const std::vector<const void*>& pointers,
                    void* scratch, cudaStream_t stream) {
  check_cudnn(cudnnSetStream(handle, stream), "cudnnSetStream");
  Record call(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  call.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(pointers.size()), pointers.data());
  call.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, numbers);
  call.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
  check_cudnn(call.close(), "arguments of a plan");
  check_cudnn(cudnnBackendExecute(handle, plan.get(), call.get()), "cudnnBackendExecute");
}

}  // namespace @name@_parts
