// Attention by one kernel, where a library has one.
#pragma once

#include "cuda_library.h"

namespace @name@_parts {

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  virtual size_t scratch_bytes() const = 0;
  virtual void run(Libraries& libraries, const void* q, const void* k, const void* v, void* y, void* scratch, cudaStream_t stream) = 0;
};

// Null where there is none for the shape.
std::unique_ptr<FusedAttention> fused_attention(Libraries& libraries, const AttentionShape& shape);

}  // namespace @name@_parts
