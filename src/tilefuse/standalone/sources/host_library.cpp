#include "host_library.h"

#include <omp.h>

#include <cstring>
#include <utility>

#include "@name@.h"
#include "host_tiles.h"

namespace @name@_parts {

namespace {

// What a kernel reports of an index out of range.
struct IndexReport {
  int64_t value, extent, place;
  int32_t found, of, dimension, source, wraps;
} __attribute__((packed));

std::string index_text(const IndexReport& report, const char* const* names, int num_arguments) {
  std::string text = "index " + std::to_string(report.value);
  if (report.source >= 0 && report.source < num_arguments && names[report.source][0]) {
    text += " at element " + std::to_string(report.place) + " of " + names[report.source];
  }
  text += " is out of range";
  if (report.of >= 0 && report.of < num_arguments && names[report.of][0]) {
    text += " for dimension " + std::to_string(report.dimension) + " of " + names[report.of];
  }
  return text + ": legal are " + std::to_string(report.wraps ? -report.extent : 0) + " to " + std::to_string(report.extent - 1);
}

template <class T> void copy_as(const CopyShape& shape, const T* from, T* to) {
  const int64_t rank = int64_t(shape.extents.size());
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < rank; ++d) rows *= shape.extents[size_t(d)];
  const int64_t inner = rank ? shape.extents.back() : 1;
  const int64_t step_from = rank ? shape.from.back() : 0, step_to = rank ? shape.to.back() : 0;
#pragma omp parallel for if (rows * inner > 65536)
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row, source = 0, target = 0;
    for (int64_t d = rank - 2; d >= 0; --d) {
      const int64_t place = rest % shape.extents[size_t(d)];
      rest /= shape.extents[size_t(d)];
      source += place * shape.from[size_t(d)];
      target += place * shape.to[size_t(d)];
    }
    for (int64_t n = 0; n < inner; ++n) to[target + n * step_to] = from[source + n * step_from];
  }
}

}  // namespace

void run_kernel(const char* kernel_name, Kernel kernel, void* const* arguments, const char* const* names, int num_arguments) {
  char report[4096] = "";
  const int status = kernel(arguments, report, long(sizeof report));
  if (!status) return;
  if (status == -1) {
    IndexReport found;
    std::memcpy(&found, report, sizeof found);
    fail(@NAME@_BAD_INDEX, index_text(found, names, num_arguments));
  }
  fail(@NAME@_INTERNAL_ERROR, std::string("kernel ") + kernel_name + " reports: " + report);
}

void copy(const CopyShape& shape, const void* from, void* to) {
  switch (shape.itemsize) {
    case 1: return copy_as(shape, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
    case 2: return copy_as(shape, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to));
    case 4: return copy_as(shape, static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to));
    default: return copy_as(shape, static_cast<const uint64_t*>(from), static_cast<uint64_t*>(to));
  }
}

char* thread_scratch(int slot, size_t num_bytes) {
  static thread_local Memory kept[4];
  if (kept[slot].size() < num_bytes) {
    kept[slot] = Memory();
    kept[slot] = Memory(num_bytes);
  }
  return kept[slot].get();
}

int num_threads() { return omp_get_max_threads(); }

}  // namespace @name@_parts
