#include "cuda_library.h"

#include <cstring>
#include <utility>

#include "@name@.h"

namespace @name@_parts {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  fail(status == cudaErrorMemoryAllocation ? @NAME@_OUT_OF_MEMORY : @NAME@_DEVICE_ERROR,
       std::string(call) + ": " + cudaGetErrorString(status));
}

DeviceMemory::DeviceMemory(size_t num_bytes) {
  void* found = nullptr;
  if (num_bytes) check(cudaMalloc(&found, num_bytes), "cudaMalloc");
  data_ = static_cast<char*>(found);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void prepare_kernel(const char* name, const void* kernel, const Launch& launch) {
  if (launch.shared_bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes), name);
  }
  if (launch.cluster > 8 && !launch.scattered) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
}

@maps:begin@
CUtensorMap tensor_map(const char* name, const TensorShape& shape, void* memory) {
  CUtensorMap map;
  check(encode_tensor_map(&map, shape, memory), name);
  return map;
}

@maps:end@
void launch_kernel(const char* name, const void* kernel, const Launch& launch, void** arguments, cudaStream_t stream) {
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(launch.blocks));
  config.blockDim = dim3(unsigned(launch.threads));
  config.dynamicSmemBytes = size_t(launch.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (launch.scattered) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  } else if (launch.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = unsigned(launch.cluster);
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  if (launch.early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelExC(&config, kernel, arguments), name);
}

namespace {

constexpr int max_rank = 8;

struct CopyPlan {
  int rank;
  long long count;
  long long extents[max_rank], from[max_rank], to[max_rank];
};

template <class T> __global__ void copy_elements(CopyPlan plan, const T* from, T* to) {
  for (long long n = blockIdx.x * (long long)blockDim.x + threadIdx.x; n < plan.count; n += (long long)gridDim.x * blockDim.x) {
    long long rest = n, source = 0, target = 0;
    for (int d = plan.rank - 1; d >= 0; --d) {
      const long long place = rest % plan.extents[d];
      rest /= plan.extents[d];
      source += place * plan.from[d];
      target += place * plan.to[d];
    }
    to[target] = from[source];
  }
}

template <class T> void copy_as(const CopyPlan& plan, const void* from, void* to, cudaStream_t stream) {
  const long long blocks = (plan.count + 255) / 256;
  copy_elements<T><<<unsigned(blocks < 65535 ? blocks : 65535), 256, 0, stream>>>(plan, static_cast<const T*>(from), static_cast<T*>(to));
  check(cudaGetLastError(), "copy");
}

// Whether both sides can be moved 16 bytes at a time; the plan is then one of such pieces.
bool by_vectors(CopyPlan& plan, int64_t itemsize, const void* from, const void* to) {
  const int last = plan.rank - 1;
  const long long pieces = 16 / itemsize;
  if (plan.rank == 0 || plan.from[last] != 1 || plan.to[last] != 1 || plan.extents[last] % pieces) return false;
  if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16) return false;
  for (int d = 0; d < last; ++d) {
    if (plan.from[d] % pieces || plan.to[d] % pieces) return false;
  }
  for (int d = 0; d < last; ++d) {
    plan.from[d] /= pieces;
    plan.to[d] /= pieces;
  }
  plan.extents[last] /= pieces;
  plan.count /= pieces;
  return true;
}

}  // namespace

void copy(const CopyShape& shape, const void* from, void* to, cudaStream_t stream) {
  CopyPlan plan = {};
  plan.count = 1;
  if (shape.extents.size() > size_t(max_rank)) fail(@NAME@_INTERNAL_ERROR, "a copy of more than 8 dimensions");
  for (size_t d = 0; d < shape.extents.size(); ++d) {
    plan.count *= shape.extents[d];
    plan.extents[d] = shape.extents[d];
    plan.from[d] = shape.from[d];
    plan.to[d] = shape.to[d];
  }
  plan.rank = int(shape.extents.size());
  if (!plan.count) return;
  if (by_vectors(plan, shape.itemsize, from, to)) return copy_as<uint4>(plan, from, to, stream);
  switch (shape.itemsize) {
    case 1: return copy_as<unsigned char>(plan, from, to, stream);
    case 2: return copy_as<unsigned short>(plan, from, to, stream);
    case 4: return copy_as<unsigned int>(plan, from, to, stream);
    default: return copy_as<unsigned long long>(plan, from, to, stream);
  }
}

}  // namespace @name@_parts
