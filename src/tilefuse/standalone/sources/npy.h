// Arrays in NumPy's file format, as far as the example needs it: row-major, of this machine's byte order.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "@name@.h"

struct Array {
  std::vector<int64_t> extents;
  std::string type;  // as in "f4"
  std::vector<char> data;
};

inline const char* numpy_type(int dtype) {
  static const char* const names[] = {"f8", "f4", "f2", "u2", "u1", "u1", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"};
  return names[dtype];
}

inline int64_t itemsize_of(int dtype) { return numpy_type(dtype)[1] - '0'; }

inline bool read_npy(const char* path, Array& array) {
  std::FILE* const file = std::fopen(path, "rb");
  if (!file) return false;
  unsigned char start[10];
  bool good = std::fread(start, 1, 10, file) == 10 && !std::memcmp(start, "\x93NUMPY", 6) && start[6] == 1;
  std::string header(good ? start[8] + 256u * start[9] : 0u, ' ');
  good = good && std::fread(header.data(), 1, header.size(), file) == header.size() && header.find("'fortran_order': False") != std::string::npos;
  const size_t type = header.find("'descr': '"), shape = header.find("'shape': (");
  good = good && type != std::string::npos && shape != std::string::npos && header[type + 10] != '>';
  if (good) {
    array.type = header.substr(type + 11, 2);
    int64_t count = 1;
    for (const char* at = header.c_str() + shape + 10; *at && *at != ')';) {
      char* end = nullptr;
      const long long extent = std::strtoll(at, &end, 10);
      if (end == at) break;
      array.extents.push_back(extent);
      count *= extent;
      for (at = end; *at == ',' || *at == ' ';) ++at;
    }
    array.data.resize(size_t(count * (array.type[1] - '0')));
    good = std::fread(array.data.data(), 1, array.data.size(), file) == array.data.size();
  }
  std::fclose(file);
  return good;
}

inline bool write_npy(const std::string& path, const Array& array) {
  std::string header = "{'descr': '" + std::string(array.type[1] == '1' ? "|" : "<") + array.type + "', 'fortran_order': False, 'shape': (";
  for (const int64_t extent : array.extents) header += std::to_string(extent) + ",";
  header += "), }";
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (!file) return false;
  const unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<unsigned char>(header.size() & 255),
                                   static_cast<unsigned char>(header.size() >> 8)};
  const bool good = std::fwrite(start, 1, 10, file) == 10 && std::fwrite(header.data(), 1, header.size(), file) == header.size() &&
                    std::fwrite(array.data.data(), 1, array.data.size(), file) == array.data.size();
  return !std::fclose(file) && good;
}

// Copies between a row-major array and memory of a tensor's strides.
inline void relay(const @name@_tensor& tensor, char* dense, char* strided, bool to_dense) {
  const int64_t size = itemsize_of(tensor.dtype);
  int64_t count = 1;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.extents[d];
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n, place = 0;
    for (int d = tensor.rank - 1; d >= 0; --d) {
      place += rest % tensor.extents[d] * tensor.strides[d];
      rest /= tensor.extents[d];
    }
    std::memcpy(to_dense ? dense + n * size : strided + place * size, to_dense ? strided + place * size : dense + n * size, size_t(size));
  }
}
