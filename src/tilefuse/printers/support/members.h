// Packed kernels: which member of a group a block belongs to.

//@ tf_member_of
TF_INLINE constexpr int tf_top_step(int count) {
  int step = 1;
  while (2 * step < count) step *= 2;
  return step;
}
// The last member that begins at or before `block`. Members begin at first[0] = 0 < first[1] < ...; COUNT - 1 is the last one.
template <int COUNT, class Index> TF_INLINE int tf_member_of(const Index* first, Index block) {
  int member = 0;
#pragma unroll
  for (int step = tf_top_step(COUNT); step > 0; step >>= 1)
    if (member + step < COUNT && first[member + step] <= block) member += step;
  return member;
}
