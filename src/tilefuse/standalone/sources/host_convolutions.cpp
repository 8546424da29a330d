// Convolutions on a processor: channels lie side by side, and every place of the window is a stretch of one long sum of products.
#include <algorithm>
#include <array>

#include "@name@.h"
#include "host_library.h"
#include "host_tiles.h"

namespace @name@_parts {

namespace {

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// A place of the window: result t of a phase reads input t * step + offset there.
struct Tap {
  int64_t place[3], offset[3];
};

// Results that the same places of the window reach: all of a convolution; of a transposed one those with equal remainders by its step.
struct Phase {
  int64_t first[3], count[3];
  std::vector<Tap> taps;
  int64_t packed;  // where its weights begin, in elements a group and column
};

struct Geometry {
  std::vector<Phase> phases;
  int64_t step[3], out_step[3];
  int64_t before[3] = {0, 0, 0}, after[3] = {0, 0, 0};  // zeros that the input would need around it
  int64_t num_taps = 0;
};

// One dimension: (place of the window, offset) of a phase.
std::vector<std::array<int64_t, 2>> taps_of(const ConvolutionShape& s, int d, int64_t phase) {
  std::vector<std::array<int64_t, 2>> found;
  for (int64_t place = 0; place < s.window[d]; ++place) {
    const int64_t shift = place * s.dilation[d];
    if (!s.transposed) {
      found.push_back({place, shift - s.padding_begin[d]});
    } else if ((phase + s.padding_begin[d] - shift) % s.step[d] == 0) {
      found.push_back({place, (phase + s.padding_begin[d] - shift) / s.step[d]});
    }
  }
  return found;
}

Geometry geometry_of(const ConvolutionShape& s) {
  Geometry g;
  int64_t phases[3];
  for (int d = 0; d < 3; ++d) {
    g.step[d] = s.transposed ? 1 : s.step[d];
    g.out_step[d] = s.transposed ? s.step[d] : 1;
    phases[d] = std::min(g.out_step[d], s.out[d]);
  }
  for (int64_t n = 0; n < phases[0] * phases[1] * phases[2]; ++n) {
    Phase phase = {{n / phases[2] / phases[1], n / phases[2] % phases[1], n % phases[2]}, {}, {}, g.num_taps};
    for (int d = 0; d < 3; ++d) phase.count[d] = divided_up(s.out[d] - phase.first[d], g.out_step[d]);
    for (const auto& i : taps_of(s, 0, phase.first[0])) {
      for (const auto& j : taps_of(s, 1, phase.first[1])) {
        for (const auto& k : taps_of(s, 2, phase.first[2])) phase.taps.push_back({{i[0], j[0], k[0]}, {i[1], j[1], k[1]}});
      }
    }
    for (const Tap& tap : phase.taps) {
      for (int d = 0; d < 3; ++d) {
        g.before[d] = std::max(g.before[d], -tap.offset[d]);
        g.after[d] = std::max(g.after[d], (phase.count[d] - 1) * g.step[d] + tap.offset[d] - (s.in[d] - 1));
      }
    }
    g.num_taps += int64_t(phase.taps.size());
    g.phases.push_back(std::move(phase));
  }
  return g;
}

bool is_depthwise(const ConvolutionShape& s) { return s.in_channels == 1 && s.out_channels == 1 && s.groups > 1; }

// Strides of the weights over (result channel of a group, input channel of a group), and from group to group.
std::array<int64_t, 3> weight_strides(const ConvolutionShape& s) {
  if (s.transposed) return {s.w[1], s.w[0], s.w[0] * s.in_channels};
  return {s.w[0], s.w[1], s.w[0] * s.out_channels};
}

template <class T> int64_t packed_elements(const ConvolutionShape& s, const Geometry& g) {
  if (is_depthwise(s)) return g.num_taps * s.groups;
  return s.groups * divided_up(s.out_channels, tile_columns<T>) * tile_columns<T> * g.num_taps * s.in_channels;
}

// [group][phase][panel][tap][input channel][columns of a tile]; depthwise [phase][tap][channel].
template <class E, class T> void pack(const ConvolutionShape& s, const Geometry& g, const E* w, T* to) {
  constexpr int width = tile_columns<T>;
  const auto [by_out, by_in, by_group] = weight_strides(s);
  const auto place_of = [&](const Tap& tap) { return tap.place[0] * s.w[2] + tap.place[1] * s.w[3] + tap.place[2] * s.w[4]; };
  if (is_depthwise(s)) {
    for (const Phase& phase : g.phases) {
      for (size_t tap = 0; tap < phase.taps.size(); ++tap) {
        T* const line = to + (phase.packed + int64_t(tap)) * s.groups;
        for (int64_t group = 0; group < s.groups; ++group) line[group] = T(widened(w[group * by_group + place_of(phase.taps[tap])]));
      }
    }
    return;
  }
  const int64_t panels = divided_up(s.out_channels, width);
#pragma omp parallel for if (packed_elements<T>(s, g) > 65536)
  for (int64_t n = 0; n < s.groups * panels; ++n) {
    const int64_t group = n / panels, panel = n % panels, count = std::min<int64_t>(width, s.out_channels - panel * width);
    for (const Phase& phase : g.phases) {
      T* line = to + ((group * g.num_taps + phase.packed) * panels + panel * int64_t(phase.taps.size())) * s.in_channels * width;
      for (const Tap& tap : phase.taps) {
        const E* const from = w + group * by_group + panel * width * by_out + place_of(tap);
        for (int64_t channel = 0; channel < s.in_channels; ++channel, line += width) {
          for (int64_t column = 0; column < width; ++column) {
            line[column] = column < count ? T(widened(from[column * by_out + channel * by_in])) : T(0);
          }
        }
      }
    }
  }
}

// The input with channels side by side: where it is, or a copy with zeros around it.
template <class T> struct Image {
  const T* data;
  int64_t stride[5];  // image, channel (1), places
  bool padded;
};

template <class E, class T> Image<T> image_of(const ConvolutionShape& s, const Geometry& g, const E* x) {
  const int64_t channels = s.groups * s.in_channels;
  const bool needs_padding = g.before[0] + g.before[1] + g.before[2] + g.after[0] + g.after[1] + g.after[2] > 0;
  const bool side_by_side = s.x[1] == 1 || channels == 1;
  if (std::is_same_v<E, T> && side_by_side && !(needs_padding && (channels < 16 || is_depthwise(s)))) {
    return {reinterpret_cast<const T*>(x), {s.x[0], 1, s.x[2], s.x[3], s.x[4]}, !needs_padding};
  }
  int64_t extent[3];
  for (int d = 0; d < 3; ++d) extent[d] = g.before[d] + s.in[d] + g.after[d];
  const int64_t by_w = channels, by_h = by_w * extent[2], by_d = by_h * extent[1], by_n = by_d * extent[0];
  T* const to = scratch_of<T>(2, s.images * by_n);
#pragma omp parallel for if (s.images * by_n > 65536)
  for (int64_t n = 0; n < s.images * extent[0] * extent[1]; ++n) {
    T* const line = to + n * by_h;
    const int64_t image = n / extent[1] / extent[0], z = n / extent[1] % extent[0] - g.before[0], y = n % extent[1] - g.before[1];
    if (z < 0 || z >= s.in[0] || y < 0 || y >= s.in[1]) {
      std::memset(line, 0, size_t(by_h) * sizeof(T));
      continue;
    }
    std::memset(line, 0, size_t(g.before[2] * channels) * sizeof(T));
    std::memset(line + (g.before[2] + s.in[2]) * channels, 0, size_t(g.after[2] * channels) * sizeof(T));
    const E* const from = x + image * s.x[0] + z * s.x[2] + y * s.x[3];
    T* const inside = line + g.before[2] * channels;
    for (int64_t place = 0; place < s.in[2]; ++place) {
      for (int64_t channel = 0; channel < channels; ++channel) inside[place * channels + channel] = T(widened(from[place * s.x[4] + channel * s.x[1]]));
    }
  }
  return {to + g.before[0] * by_d + g.before[1] * by_h + g.before[2] * by_w, {by_n, 1, by_d, by_h, by_w}, true};
}

template <class E, class T> void store_channels(const ConvolutionShape& s, const E* bias, int64_t channel, const T* sums, int64_t count, E* to) {
  for (int64_t n = 0; n < count; ++n) {
    const T sum = bias ? T(sums[n] + T(widened(bias[(channel + n) * s.bias]))) : sums[n];
    narrow(sum, to[(channel + n) * s.y[1]]);
  }
}

// Where result number n of a phase lies: coordinates among the phase's results.
struct Point {
  int64_t at[3];
};

Point point_of(const Phase& phase, int64_t n) {
  return {{n / phase.count[2] / phase.count[1], n / phase.count[2] % phase.count[1], n % phase.count[2]}};
}

template <class E> E* result_place(const ConvolutionShape& s, const Geometry& g, const Phase& phase, const Point& point, int64_t image, E* y) {
  E* to = y + image * s.y[0];
  for (int d = 0; d < 3; ++d) to += (phase.first[d] + point.at[d] * g.out_step[d]) * s.y[d + 2];
  return to;
}

// Pointers to the input under a place of the window for every row of a tile; zeros where the window reaches outside. False: all outside.
template <class T>
bool point_rows(const ConvolutionShape& s, const Geometry& g, const Image<T>& image, const T* base, const Point* points, const Tap& tap,
                const T* zeros, Stretch<T>& stretch) {
  bool any = false;
  for (int row = 0; row < tile_rows; ++row) {
    const T* from = base;
    bool inside = true;
    for (int d = 0; d < 3; ++d) {
      const int64_t at = points[row].at[d] * g.step[d] + tap.offset[d];
      inside = inside && (image.padded || (at >= 0 && at < s.in[d]));
      from += at * image.stride[d + 2];
    }
    stretch.rows[row] = inside ? from : zeros;
    any = any || inside;
  }
  return any;
}

template <class E, class T>
void convolve(const ConvolutionShape& s, const Geometry& g, const Image<T>& image, const T* packed, const E* bias, E* y) {
  constexpr int width = tile_columns<T>, block_rows = 4 * tile_rows;
  const int64_t panels = divided_up(s.out_channels, width);
  // Neighbours in the window that are neighbours in memory make one stretch.
  const bool runs = image.padded && s.groups == 1 && !s.transposed && s.dilation[2] == 1 && image.stride[4] == s.in_channels;
  const std::vector<T> zeros(size_t(s.in_channels), T(0));
  for (const Phase& phase : g.phases) {
    const int64_t results = phase.count[0] * phase.count[1] * phase.count[2], blocks = divided_up(results, block_rows);
    const int64_t taps = int64_t(phase.taps.size());
    const int64_t wanted = std::max<int64_t>(1, 4 * num_threads() / std::max<int64_t>(1, s.images * s.groups * blocks));
    const int64_t group_size = std::max<int64_t>(1, divided_up(panels, wanted)), parts = divided_up(panels, group_size);
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < s.images * s.groups * blocks * parts; ++task) {
      const int64_t part = task % parts, block = task / parts % blocks;
      const int64_t group = task / parts / blocks % s.groups, number = task / parts / blocks / s.groups;
      const T* const base = image.data + number * image.stride[0] + group * s.in_channels;
      std::vector<Stretch<T>> stretches(size_t(taps) * (block_rows / tile_rows));
      std::vector<int64_t> taps_inside(stretches.size());
      int64_t counts[block_rows / tile_rows] = {};
      const int64_t begin = block * block_rows, end = std::min(results, begin + block_rows);
      for (int64_t first = begin; first < end; first += tile_rows) {
        const int64_t tile = (first - begin) / tile_rows;
        Point points[tile_rows];
        for (int row = 0; row < tile_rows; ++row) points[row] = point_of(phase, std::min(first + row, end - 1));
        int64_t& count = counts[tile];
        for (int64_t tap = 0; tap < taps; tap += runs ? s.window[2] : 1) {
          Stretch<T>& stretch = stretches[size_t(tile * taps + count)];
          if (!point_rows(s, g, image, base, points, phase.taps[size_t(tap)], zeros.data(), stretch)) continue;
          stretch.length = s.in_channels * (runs ? s.window[2] : 1);
          taps_inside[size_t(tile * taps + count++)] = tap;
        }
      }
      alignas(64) T tile_sums[tile_rows * width];
      for (int64_t panel = part * group_size; panel < std::min(panels, (part + 1) * group_size); ++panel) {
        const T* const weights = packed + ((group * g.num_taps + phase.packed) * panels + panel * taps) * s.in_channels * width;
        const int64_t columns = std::min<int64_t>(width, s.out_channels - panel * width);
        const int64_t channel = group * s.out_channels + panel * width;
        for (int64_t first = begin; first < end; first += tile_rows) {
          const int64_t tile = (first - begin) / tile_rows;
          for (int64_t n = 0; n < counts[tile]; ++n) {
            stretches[size_t(tile * taps + n)].packed = weights + taps_inside[size_t(tile * taps + n)] * s.in_channels * width;
          }
          multiply_tile(stretches.data() + tile * taps, counts[tile], tile_sums);
          for (int64_t row = 0; row < std::min<int64_t>(tile_rows, end - first); ++row) {
            store_channels(s, bias, channel, tile_sums + row * width, columns,
                           result_place(s, g, phase, point_of(phase, first + row), number, y));
          }
        }
      }
    }
  }
}

// Every channel by itself: the window's places are added up for all channels at once.
template <class E, class T>
CONTRACTED void convolve_channels(const ConvolutionShape& s, const Geometry& g, const Image<T>& image, const T* packed, const E* bias, E* y) {
  CONTRACT_HERE
  for (const Phase& phase : g.phases) {
    const int64_t results = phase.count[0] * phase.count[1] * phase.count[2];
#pragma omp parallel for
    for (int64_t n = 0; n < s.images * results; ++n) {
      T* const sums = scratch_of<T>(1, s.groups);
      std::fill(sums, sums + s.groups, T(0));
      const Point point = point_of(phase, n % results);
      for (size_t tap = 0; tap < phase.taps.size(); ++tap) {
        const T* from = image.data + n / results * image.stride[0];
        for (int d = 0; d < 3; ++d) from += (point.at[d] * g.step[d] + phase.taps[tap].offset[d]) * image.stride[d + 2];
        const T* const weights = packed + (phase.packed + int64_t(tap)) * s.groups;
        for (int64_t channel = 0; channel < s.groups; ++channel) sums[channel] += from[channel] * weights[channel];
      }
      store_channels(s, bias, 0, sums, s.groups, result_place(s, g, phase, point, n / results, y));
    }
  }
}

template <class Body> void by_type(Dtype dtype, Body body) {
  by_float_type(dtype, body, [] { fail(@NAME@_INTERNAL_ERROR, "a convolution of a type other than f64, f32, f16 and bf16"); });
}

}  // namespace

void Convolution::prepare(const ConvolutionShape& shape, const void* constant_w) {
  shape_ = shape;
  if (!constant_w) return;
  by_type(shape.dtype, [&](auto element) {
    using E = decltype(element);
    using T = Computed<E>;
    const Geometry g = geometry_of(shape);
    packed_ = Memory(size_t(packed_elements<T>(shape, g)) * sizeof(T));
    pack(shape, g, static_cast<const E*>(constant_w), reinterpret_cast<T*>(packed_.get()));
  });
}

void Convolution::run(const void* x, const void* w, const void* bias, void* y) const {
  by_type(shape_.dtype, [&](auto element) {
    using E = decltype(element);
    using T = Computed<E>;
    const Geometry g = geometry_of(shape_);
    const T* packed = reinterpret_cast<const T*>(packed_.get());
    if (!packed) {
      T* const made = scratch_of<T>(0, packed_elements<T>(shape_, g));
      pack(shape_, g, static_cast<const E*>(w), made);
      packed = made;
    }
    const Image<T> image = image_of<E, T>(shape_, g, static_cast<const E*>(x));
    if (is_depthwise(shape_)) {
      convolve_channels(shape_, g, image, packed, static_cast<const E*>(bias), static_cast<E*>(y));
    } else {
      convolve(shape_, g, image, packed, static_cast<const E*>(bias), static_cast<E*>(y));
    }
  });
}

}  // namespace @name@_parts
