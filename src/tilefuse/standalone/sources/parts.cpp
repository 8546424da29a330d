#include "parts.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "@name@.h"

namespace @name@_parts {

namespace {

constexpr size_t alignment = 64;
constexpr size_t header_bytes = 64;

// The checksum of zip and png files (ISO 3309), eight bytes a step.
uint32_t checksum_of(const unsigned char* data, size_t num_bytes) {
  static uint32_t table[8][256];
  static const bool filled = [] {
    for (uint32_t n = 0; n < 256; ++n) {
      uint32_t value = n;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xedb88320u ^ (value >> 1) : value >> 1;
      table[0][n] = value;
    }
    for (int row = 1; row < 8; ++row) {
      for (uint32_t n = 0; n < 256; ++n) table[row][n] = table[0][table[row - 1][n] & 255] ^ (table[row - 1][n] >> 8);
    }
    return true;
  }();
  (void)filled;
  uint32_t sum = 0xffffffffu;
  for (; num_bytes >= 8; data += 8, num_bytes -= 8) {
    uint32_t low = 0, high = 0;
    for (int n = 0; n < 4; ++n) {
      low |= uint32_t(data[n]) << (8 * n);
      high |= uint32_t(data[n + 4]) << (8 * n);
    }
    low ^= sum;
    sum = 0;
    for (int n = 0; n < 4; ++n) sum ^= table[7 - n][(low >> (8 * n)) & 255] ^ table[3 - n][(high >> (8 * n)) & 255];
  }
  for (; num_bytes; ++data, --num_bytes) sum = table[0][(sum ^ *data) & 255] ^ (sum >> 8);
  return ~sum;
}

struct File {
  std::FILE* file;
  ~File() {
    if (file) std::fclose(file);
  }
};

}  // namespace

int64_t itemsize(Dtype dtype) {
  static const int64_t sizes[] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1};
  return sizes[int(dtype)];
}

void fail(int status, const std::string& message) { throw Failure{status, message}; }

Memory::Memory(size_t num_bytes) : num_bytes_(num_bytes) {
  if (!num_bytes) return;
  data_ = static_cast<char*>(std::aligned_alloc(alignment, (num_bytes + alignment - 1) / alignment * alignment));
  if (!data_) fail(@NAME@_OUT_OF_MEMORY, "no memory for " + std::to_string(num_bytes) + " bytes");
}

Memory::Memory(Memory&& other) noexcept : data_(other.data_), num_bytes_(other.num_bytes_) {
  other.data_ = nullptr;
  other.num_bytes_ = 0;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

Memory::~Memory() { std::free(data_); }

Memory read_weights(const char* path, uint64_t num_bytes, uint32_t checksum) {
  const std::string name = path;
  const File opened{std::fopen(path, "rb")};
  if (!opened.file) fail(@NAME@_BAD_WEIGHTS, "cannot open the weights " + name);
  unsigned char header[header_bytes];
  if (std::fread(header, 1, header_bytes, opened.file) != header_bytes || std::memcmp(header, "TFWEIGHT", 8)) {
    fail(@NAME@_BAD_WEIGHTS, name + " is no file of weights");
  }
  uint32_t version, order, found_checksum;
  uint64_t found_bytes;
  std::memcpy(&version, header + 8, 4);
  std::memcpy(&order, header + 12, 4);
  std::memcpy(&found_bytes, header + 16, 8);
  std::memcpy(&found_checksum, header + 24, 4);
  if (order != 0x01020304u) fail(@NAME@_BAD_WEIGHTS, name + " was written for a machine of the other byte order");
  if (version != 1) fail(@NAME@_BAD_WEIGHTS, name + " is of another version of the format");
  if (found_bytes != num_bytes || found_checksum != checksum) {
    fail(@NAME@_BAD_WEIGHTS, name + " holds the weights of another program than @name@");
  }
  Memory data(num_bytes);
  if (std::fread(data.get(), 1, num_bytes, opened.file) != num_bytes) fail(@NAME@_BAD_WEIGHTS, name + " ends too early");
  if (checksum_of(reinterpret_cast<const unsigned char*>(data.get()), num_bytes) != checksum) {
    fail(@NAME@_BAD_WEIGHTS, name + " is damaged: its checksum does not fit");
  }
  return data;
}

}  // namespace @name@_parts
