// What all parts of the program share: data types, failures, memory, the file of weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace @name@_parts {

// Numbers as in the C interface.
enum class Dtype : int { f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

int64_t itemsize(Dtype dtype);

// An error on its way to the C interface; `status` is one of its numbers.
struct Failure {
  int status;
  std::string message;
};

[[noreturn]] void fail(int status, const std::string& message);

// Memory of the host at an address that kernels can use.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t num_bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  char* get() const { return data_; }
  size_t size() const { return num_bytes_; }

 private:
  char* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// The data of the file `path`, checked against what the program was written for.
Memory read_weights(const char* path, uint64_t num_bytes, uint32_t checksum);

// Strides of the operands of one batch dimension of a product, in elements.
struct Batch {
  int64_t extent, a, b, bias, d;
};

// d[row, column] = sum over inner of a[row, inner] * b[inner, column] (+ bias[row, column]). Strides in elements.
struct ProductShape {
  Dtype dtype;
  int64_t rows, columns, inner;
  int64_t a_row, a_inner, b_inner, b_column, bias_row, bias_column, d_row, d_column;
  std::vector<Batch> batches;
  bool has_bias;
  bool tf32;      // f32 operands may be rounded to 10 bits of mantissa, on a GPU
  int alignment;  // bytes, of all operands of every single product
  bool wide_result;  // d is f32, whatever the operands are
};

// A convolution over three dimensions (fewer: the first have extent 1), or, where `transposed`, its adjoint.
// Strides in elements: of x (image, channel, place), of the weights (first, second dimension, place of the window), of y as of x.
struct ConvolutionShape {
  Dtype dtype;
  int64_t images, groups, in_channels, out_channels;  // channels of one group
  int64_t in[3], out[3], window[3], step[3], padding_begin[3], padding_end[3], dilation[3];
  int64_t x[5], w[5], y[5], bias;
  bool transposed, has_bias;
  bool tf32;
};

// y = softmax(q k^T scale + mask) v for every batch. Strides in elements: of a batch dimension, then of rows and columns.
struct AttentionBatch {
  int64_t extent, q, k, v, mask, y;
};
struct AttentionShape {
  Dtype dtype;
  int64_t rows, keys, depth, width;  // of q; of k and v; columns of q and k; columns of v
  int64_t q_row, q_column, k_row, k_column, v_row, v_column, mask_row, mask_column, y_row, y_column;
  std::vector<AttentionBatch> batches;
  double scale;
  bool causal;    // row i sees keys 0 .. i
  int mask;       // 0 none, 1 bool (true: seen), 2 added, of type dtype
  int alignment;  // bytes, of q, k, v and y of every batch
};

// to[i, ...] = from[i, ...]. Strides in elements.
struct CopyShape {
  int64_t itemsize;
  std::vector<int64_t> extents, from, to;
};

}  // namespace @name@_parts
