// Convolutions by cuDNN: one operation a graph, and the first plan of its heuristics that can be made for it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "@name@.h"
#include "cuda_library.h"
#include "cuda_records.h"

namespace @name@_parts {

namespace {

// Spatial dimensions that the library is told: two where the first of three has extent 1 in everything.
int first_dimension(const ConvolutionShape& s) {
  return s.in[0] == 1 && s.out[0] == 1 && s.window[0] == 1 && s.padding_begin[0] == 0 && s.padding_end[0] == 0 ? 1 : 0;
}

std::vector<int64_t> without(const int64_t* values, int first) { return std::vector<int64_t>(values + first, values + 3); }

std::vector<int64_t> joined(int64_t first, int64_t second, const std::vector<int64_t>& rest) {
  std::vector<int64_t> made = {first, second};
  made.insert(made.end(), rest.begin(), rest.end());
  return made;
}

template <class T> __device__ T sum_of(T a, T b) { return a + b; }
__device__ __half sum_of(__half a, __half b) { return __float2half(__half2float(a) + __half2float(b)); }
__device__ __nv_bfloat16 sum_of(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16(__bfloat162float(a) + __bfloat162float(b));
}

struct Places {
  long long count, channels, out[3], stride[5], bias;
};

template <class T> __global__ void add_to_channels(Places places, const T* bias, T* y) {
  for (long long n = blockIdx.x * (long long)blockDim.x + threadIdx.x; n < places.count; n += (long long)gridDim.x * blockDim.x) {
    long long rest = n / places.channels, at = (n % places.channels) * places.stride[1];
    for (int d = 2; d >= 0; --d) {
      at += rest % places.out[d] * places.stride[d + 2];
      rest /= places.out[d];
    }
    at += rest * places.stride[0];
    y[at] = sum_of(y[at], bias[(n % places.channels) * places.bias]);
  }
}

template <class T> void add_bias_as(const ConvolutionShape& s, const void* bias, void* y, cudaStream_t stream) {
  Places places = {};
  places.channels = s.groups * s.out_channels;
  places.count = s.images * places.channels * s.out[0] * s.out[1] * s.out[2];
  for (int d = 0; d < 3; ++d) places.out[d] = s.out[d];
  for (int d = 0; d < 5; ++d) places.stride[d] = s.y[d];
  places.bias = s.bias;
  const long long blocks = (places.count + 255) / 256;
  add_to_channels<T><<<unsigned(blocks < 65535 ? blocks : 65535), 256, 0, stream>>>(places, static_cast<const T*>(bias), static_cast<T*>(y));
  check(cudaGetLastError(), "the bias of a convolution");
}

void add_bias(const ConvolutionShape& s, const void* bias, void* y, cudaStream_t stream) {
  switch (s.dtype) {
    case Dtype::f64: return add_bias_as<double>(s, bias, y, stream);
    case Dtype::f32: return add_bias_as<float>(s, bias, y, stream);
    case Dtype::f16: return add_bias_as<__half>(s, bias, y, stream);
    default: return add_bias_as<__nv_bfloat16>(s, bias, y, stream);
  }
}

}  // namespace

struct Convolution::State {
  ConvolutionShape shape;
  std::unique_ptr<Record> plan;
  int64_t scratch_bytes = 0;
};

Convolution::Convolution() = default;
Convolution::~Convolution() = default;
Convolution::Convolution(Convolution&&) noexcept = default;

size_t Convolution::scratch_bytes() const { return state_ ? size_t(state_->scratch_bytes) : 0; }

void Convolution::prepare(Libraries& libraries, const ConvolutionShape& shape) {
  state_ = std::make_unique<State>();
  state_->shape = shape;
  const cudnnHandle_t handle = static_cast<cudnnHandle_t>(libraries.convolution_handle());
  const int first = first_dimension(shape);
  const int64_t inputs = shape.groups * shape.in_channels, outputs = shape.groups * shape.out_channels;
  const Record x = tensor('x', shape.dtype, joined(shape.images, inputs, without(shape.in, first)),
                          joined(shape.x[0], shape.x[1], without(shape.x + 2, first)));
  const Record y = tensor('y', shape.dtype, joined(shape.images, outputs, without(shape.out, first)),
                          joined(shape.y[0], shape.y[1], without(shape.y + 2, first)));
  const Record w = tensor('w', shape.dtype,
                          shape.transposed ? joined(inputs, shape.out_channels, without(shape.window, first))
                                           : joined(outputs, shape.in_channels, without(shape.window, first)),
                          joined(shape.w[0], shape.w[1], without(shape.w + 2, first)));
  Record windows(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t compute = shape.dtype == Dtype::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  windows.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  windows.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  windows.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, without(shape.padding_begin, first));
  windows.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, without(shape.padding_end, first));
  windows.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, without(shape.dilation, first));
  windows.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, without(shape.step, first));
  windows.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t(3 - first));
  check_cudnn(windows.close(), "windows of a convolution");
  const float ones[2] = {1, 0};
  const double wide_ones[2] = {1, 0};
  const bool wide = shape.dtype == Dtype::f64;
  const cudnnBackendAttributeType_t number = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  const void* alpha = wide ? static_cast<const void*>(&wide_ones[0]) : &ones[0];
  const void* beta = wide ? static_cast<const void*>(&wide_ones[1]) : &ones[1];
  Record operation(shape.transposed ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                                    : CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  if (shape.transposed) {
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, x);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, w);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, y);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, windows);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, number, 1, alpha);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, number, 1, beta);
  } else {
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, windows);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, number, 1, alpha);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, number, 1, beta);
  }
  check_cudnn(operation.close(), "a convolution");
  state_->plan = plan_of(handle, {&operation}, shape.dtype == Dtype::f32 && !shape.tf32, state_->scratch_bytes);
  if (!state_->plan) {
    fail(@NAME@_DEVICE_ERROR, "cuDNN has no plan for a convolution of " + std::to_string(inputs) + " to " + std::to_string(outputs) +
                                  " channels");
  }
}

void Convolution::run(Libraries& libraries, const void* x, const void* w, const void* bias, void* y, void* scratch, cudaStream_t stream) {
  const cudnnHandle_t handle = static_cast<cudnnHandle_t>(libraries.convolution_handle());
  execute(handle, *state_->plan, {'x', 'w', 'y'}, {x, w, y}, scratch, stream);
  if (state_->shape.has_bias) add_bias(state_->shape, bias, y, stream);
}

}  // namespace @name@_parts
