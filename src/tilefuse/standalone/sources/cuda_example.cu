// Runs the program: weights.bin [inputs.npy ...] [--out NAME] [--repeat N]. Inputs that are not given are drawn.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstdio>

#include "npy.h"

#define CHECK_CUDA(call)                                                       \
  do {                                                                         \
    const cudaError_t status = (call);                                         \
    if (status != cudaSuccess) {                                               \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));     \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

static void check(int status) {
  if (status) {
    std::fprintf(stderr, "error %d: %s\n", status, @name@_last_error());
    std::exit(1);
  }
}

@drawing@
int main(int argc, char** argv) {
  const Command command = parse(argc, argv);
  @name@_handle* handle = nullptr;
  const auto started = std::chrono::steady_clock::now();
  check(@name@_create(command.weights, &handle));
  std::printf("prepared in %.3f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  std::vector<void*> inputs, results;
  for (int n = 0; n < @name@_num_inputs(); ++n) {
    const @name@_tensor& tensor = *@name@_input(n);
    std::vector<char> memory = input_of(tensor, command, n);
    void* place = nullptr;
    CHECK_CUDA(cudaMalloc(&place, memory.size() + 16));
    CHECK_CUDA(cudaMemcpy(place, memory.data(), tensor.bytes, cudaMemcpyHostToDevice));
    inputs.push_back(place);
  }
  for (int n = 0; n < @name@_num_results(); ++n) {
    void* place = nullptr;
    CHECK_CUDA(cudaMalloc(&place, @name@_result(n)->bytes + 16));
    results.push_back(place);
  }
  void* workspace = nullptr;
  CHECK_CUDA(cudaMalloc(&workspace, @name@_workspace_bytes(handle) + 16));
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  check(@name@_run(handle, inputs.data(), results.data(), workspace, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  for (int n = 0; n < @name@_num_results(); ++n) {
    const @name@_tensor& tensor = *@name@_result(n);
    std::vector<char> memory(tensor.bytes);
    CHECK_CUDA(cudaMemcpy(memory.data(), results[size_t(n)], tensor.bytes, cudaMemcpyDeviceToHost));
    tell(tensor, memory.data(), command, n);
  }
  if (command.repeat) {
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    for (int n = 0; n < 3; ++n) check(@name@_run(handle, inputs.data(), results.data(), workspace, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaEventRecord(begin, stream));
    const auto before = std::chrono::steady_clock::now();
    for (int n = 0; n < command.repeat; ++n) check(@name@_run(handle, inputs.data(), results.data(), workspace, stream));
    const double host_us = 1e6 * std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() / command.repeat;
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    float milliseconds = 0;
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    std::printf("%.2f us a run (calls one after the other), of which the host takes %.2f us\n", 1e3 * milliseconds / command.repeat, host_us);
    cudaGraph_t graph;
    cudaGraphExec_t recorded;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(@name@_run(handle, inputs.data(), results.data(), workspace, stream));
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&recorded, graph, 0));
    for (int n = 0; n < 3; ++n) CHECK_CUDA(cudaGraphLaunch(recorded, stream));
    CHECK_CUDA(cudaEventRecord(begin, stream));
    for (int n = 0; n < command.repeat; ++n) CHECK_CUDA(cudaGraphLaunch(recorded, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    std::printf("%.2f us a run recorded as a graph\n", 1e3 * milliseconds / command.repeat);
  }
  @name@_destroy(handle);
  return 0;
}
