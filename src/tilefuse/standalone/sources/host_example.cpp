// Runs the program: weights.bin [inputs.npy ...] [--out NAME] [--repeat N]. Inputs that are not given are drawn.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "npy.h"

static void check(int status) {
  if (status) {
    std::fprintf(stderr, "error %d: %s\n", status, @name@_last_error());
    std::exit(1);
  }
}

// Memory at an address that the program takes; it is freed when the process ends.
static void* taken(size_t num_bytes) {
  void* const place = std::aligned_alloc(64, (num_bytes + 64) / 64 * 64);
  if (!place) {
    std::fprintf(stderr, "no memory for %zu bytes\n", num_bytes);
    std::exit(1);
  }
  return place;
}

@drawing@
int main(int argc, char** argv) {
  const Command command = parse(argc, argv);
  @name@_handle* handle = nullptr;
  const auto started = std::chrono::steady_clock::now();
  check(@name@_create(command.weights, &handle));
  std::printf("prepared in %.3f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  std::vector<void*> inputs, results;
  for (int n = 0; n < @name@_num_inputs(); ++n) {
    const @name@_tensor& tensor = *@name@_input(n);
    const std::vector<char> memory = input_of(tensor, command, n);
    inputs.push_back(taken(tensor.bytes));
    std::memcpy(inputs.back(), memory.data(), tensor.bytes);
  }
  for (int n = 0; n < @name@_num_results(); ++n) results.push_back(taken(@name@_result(n)->bytes));
  void* const workspace = taken(@name@_workspace_bytes(handle));
  check(@name@_run(handle, inputs.data(), results.data(), workspace, nullptr));
  for (int n = 0; n < @name@_num_results(); ++n) tell(*@name@_result(n), static_cast<char*>(results[size_t(n)]), command, n);
  if (command.repeat) {
    std::vector<double> times;
    for (int n = 0; n < command.repeat; ++n) {
      const auto before = std::chrono::steady_clock::now();
      check(@name@_run(handle, inputs.data(), results.data(), workspace, nullptr));
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
    }
    std::sort(times.begin(), times.end());
    std::printf("%.2f us a run (median of %d), %.2f at best\n", 1e6 * times[times.size() / 2], command.repeat, 1e6 * times[0]);
  }
  @name@_destroy(handle);
  return 0;
}
