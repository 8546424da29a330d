// Kernels of tasks on the host, which runs one task after the other: a wait is satisfied when its task begins, or never.

//@ tf_reached
TF_INLINE bool tf_reached(const unsigned int* counters, long long count, unsigned int value) {
  for (long long n = 0; n < count; ++n)
    if (counters[n] < value) return false;
  return true;
}

//@ tf_stuck
// The status of a kernel whose task waits for ever, with a report.
inline int tf_stuck(char* report, long size, const char* body, long long number, long long counter, unsigned int value) {
  if (report && size > 0)
    std::snprintf(report, (unsigned long)size, "task %lld (%s) waits for counter %lld = %u, which no task before it reaches", number, body,
                  counter, value);
  return -2;
}

//@ tf_now_ns
inline unsigned long long tf_now_ns() {
  return (unsigned long long)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
