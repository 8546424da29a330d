// Calls of kernels, copies, and what the plan calls besides: matrix products, convolutions, attention.
#pragma once

#include "parts.h"

namespace @name@_parts {

using Kernel = int (*)(void* const* arguments, char* report, long report_size);

// Runs a kernel. names: of its arguments, for what it reports.
void run_kernel(const char* kernel_name, Kernel kernel, void* const* arguments, const char* const* names, int num_arguments);

void copy(const CopyShape& shape, const void* from, void* to);

@products:begin@
// A matrix product. `constant_b`: the second operand, where it never changes; it is then packed once.
class Product {
 public:
  void prepare(const ProductShape& shape, const void* constant_b);
  void run(const void* a, const void* b, const void* bias, void* d) const;

 private:
  ProductShape shape_;
  Memory packed_;
};
@products:end@
@convolutions:begin@
// A convolution. `constant_w`: the weights, where they never change; they are then packed once.
class Convolution {
 public:
  void prepare(const ConvolutionShape& shape, const void* constant_w);
  void run(const void* x, const void* w, const void* bias, void* y) const;

 private:
  ConvolutionShape shape_;
  Memory packed_;
};
@convolutions:end@
@attentions:begin@
class Attention {
 public:
  void prepare(const AttentionShape& shape, const void*);
  void run(const void* q, const void* k, const void* v, const void* mask, void* y) const;

 private:
  AttentionShape shape_;
};
@attentions:end@

}  // namespace @name@_parts
