// Launches of kernels, copies, and the calls of cuBLASLt and cuDNN, each prepared once and then run any number of times.
#pragma once

@maps:begin@
#include <cuda.h>
@maps:end@
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

#include "parts.h"

namespace @name@_parts {

void check(cudaError_t status, const char* call);

// Memory of the device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t num_bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();
  char* get() const { return data_; }

 private:
  char* data_ = nullptr;
};

struct Launch {
  int blocks, threads, cluster, shared_bytes;
  bool early;  // may start before the kernel ahead has ended, and waits for it itself
  bool scattered;  // blocks of a cluster lie anywhere and wait for each other: all blocks start at once
};

// Sets what a kernel needs before its first launch.
void prepare_kernel(const char* name, const void* kernel, const Launch& launch);
@maps:begin@
@tensor_maps@
// The map of a tensor that lies at `memory`, an argument of kernel `name`.
CUtensorMap tensor_map(const char* name, const TensorShape& shape, void* memory);
@maps:end@
void launch_kernel(const char* name, const void* kernel, const Launch& launch, void** arguments, cudaStream_t stream);

void copy(const CopyShape& shape, const void* from, void* to, cudaStream_t stream);

// Handles of the libraries, of one device. Runs of one program hold `mutex` while they enqueue, because the library handles are
// bound to a stream.
class Libraries {
 public:
  Libraries();
  ~Libraries();
  Libraries(const Libraries&) = delete;
  void* product_handle();      // cublasLtHandle_t
  void* convolution_handle();  // cudnnHandle_t
  std::mutex mutex;

 private:
  void* product_ = nullptr;
  void* convolution_ = nullptr;
};

@products:begin@
// A matrix product by cuBLASLt.
class Product {
 public:
  Product();
  ~Product();
  Product(Product&&) noexcept;
  void prepare(Libraries& libraries, const ProductShape& shape);
  size_t scratch_bytes() const;
  void run(Libraries& libraries, const void* a, const void* b, const void* bias, void* d, void* scratch, cudaStream_t stream);

  struct State;

 private:
  std::unique_ptr<State> state_;
};
@products:end@
@convolutions:begin@
// A convolution by cuDNN's graph interface.
class Convolution {
 public:
  Convolution();
  ~Convolution();
  Convolution(Convolution&&) noexcept;
  void prepare(Libraries& libraries, const ConvolutionShape& shape);
  size_t scratch_bytes() const;
  void run(Libraries& libraries, const void* x, const void* w, const void* bias, void* y, void* scratch, cudaStream_t stream);

  struct State;

 private:
  std::unique_ptr<State> state_;
};
@convolutions:end@
@attentions:begin@
// Attention: two products by cuBLASLt with a softmax between them, in memory.
class Attention {
 public:
  Attention();
  ~Attention();
  Attention(Attention&&) noexcept;
  void prepare(Libraries& libraries, const AttentionShape& shape);
  size_t scratch_bytes() const;
  void run(Libraries& libraries, const void* q, const void* k, const void* v, const void* mask, void* y, void* scratch,
           cudaStream_t stream);

  struct State;

 private:
  std::unique_ptr<State> state_;
};
@attentions:end@

}  // namespace @name@_parts
