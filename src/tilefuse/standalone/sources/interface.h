/* @title@
 *
 * The C interface. `@name@_create` reads the weights; `@name@_run` computes the results from the inputs. Sizes are fixed.
 * Functions that give an int give 0 (@NAME@_OK) or a status below; `@name@_last_error` says more, for the calling thread.
 *
 * Threads: several handles may be used at the same time. One handle may run in several threads at the same time, each with a
 * workspace (and on a GPU a stream) of its own; only `@name@_run_host` calls of one handle wait for each other.
 */
#ifndef @NAME@_H
#define @NAME@_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define @NAME@_API __declspec(dllexport)
#else
#define @NAME@_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct @name@_handle @name@_handle;

enum @name@_status {
  @NAME@_OK = 0,
  @NAME@_BAD_ARGUMENT = 1,   /* a null or misaligned pointer, a number out of range */
  @NAME@_BAD_WEIGHTS = 2,    /* the file is missing, damaged, or of another program */
  @NAME@_OUT_OF_MEMORY = 3,
  @NAME@_BAD_INDEX = 4,      /* an input holds an index out of range */
  @NAME@_DEVICE_ERROR = 5,   /* the GPU, its driver, or a library on it */
  @NAME@_INTERNAL_ERROR = 6
};

/* Halves (f16, bf16) travel as 16-bit words, 8-bit floats and booleans as bytes. */
enum @name@_dtype {
  @NAME@_F64 = 0, @NAME@_F32 = 1, @NAME@_F16 = 2, @NAME@_BF16 = 3, @NAME@_F8E4M3 = 4, @NAME@_F8E5M2 = 5, @NAME@_I64 = 6, @NAME@_I32 = 7,
  @NAME@_I16 = 8, @NAME@_I8 = 9, @NAME@_U64 = 10, @NAME@_U32 = 11, @NAME@_U16 = 12, @NAME@_U8 = 13, @NAME@_BOOL = 14
};

/* One input or result. Strides are in elements; `bytes` is from the first to the last element, gaps included. */
typedef struct @name@_tensor {
  const char* name;
  int dtype;
  int rank;
  const int64_t* extents;
  const int64_t* strides;
  size_t bytes;
  int updated; /* an input that a run writes to */
} @name@_tensor;

@NAME@_API int @name@_num_inputs(void);
@NAME@_API int @name@_num_results(void);
/* NULL for a number out of range. */
@NAME@_API const @name@_tensor* @name@_input(int number);
@NAME@_API const @name@_tensor* @name@_result(int number);

@NAME@_API int @name@_create(const char* weights_path, @name@_handle** handle);
@NAME@_API void @name@_destroy(@name@_handle* handle);
@NAME@_API size_t @name@_workspace_bytes(const @name@_handle* handle);

/* Computes the results.@where@ All pointers are 16-byte aligned, the workspace
 * @alignment@-byte; what they point to does not overlap. @stream@ */
@NAME@_API int @name@_run(@name@_handle* handle, void* const* inputs, void* const* results, void* workspace, void* stream);

/* The same from and to memory of the host, with a workspace that the handle keeps. */
@NAME@_API int @name@_run_host(@name@_handle* handle, void* const* inputs, void* const* results);

/* What went wrong in the last call of this thread that gave a status other than 0. */
@NAME@_API const char* @name@_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
