// Handles of the libraries, made when the first call is prepared.
@products:begin@
#include <cublasLt.h>
@products:end@
@convolutions:begin@
#include <cudnn.h>
@convolutions:end@

#include "@name@.h"
#include "cuda_library.h"

namespace @name@_parts {

Libraries::Libraries() = default;

Libraries::~Libraries() {
@products:begin@
  if (product_) cublasLtDestroy(static_cast<cublasLtHandle_t>(product_));
@products:end@
@convolutions:begin@
  if (convolution_) cudnnDestroy(static_cast<cudnnHandle_t>(convolution_));
@convolutions:end@
}

void* Libraries::product_handle() {
@products:begin@
  if (!product_) {
    cublasLtHandle_t made;
    if (cublasLtCreate(&made) != CUBLAS_STATUS_SUCCESS) fail(@NAME@_DEVICE_ERROR, "cublasLtCreate failed");
    product_ = made;
  }
@products:end@
  return product_;
}

void* Libraries::convolution_handle() {
@convolutions:begin@
  if (!convolution_) {
    cudnnHandle_t made;
    const cudnnStatus_t status = cudnnCreate(&made);
    if (status != CUDNN_STATUS_SUCCESS) fail(@NAME@_DEVICE_ERROR, std::string("cudnnCreate: ") + cudnnGetErrorString(status));
    convolution_ = made;
  }
@convolutions:end@
  return convolution_;
}

}  // namespace @name@_parts
