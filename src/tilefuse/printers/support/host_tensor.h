// Copies of boxes of tensors, element by element, for host C++. The last dimension is the innermost.

//@ tf_tensor_view
// A tensor in memory that begins at element `first`, and the box of one copy.
template <int RANK> struct tf_tensor_view { long long extents[RANK], strides[RANK], box[RANK], first; };

//@ tf_each_of_box
// visit(place in the box, place in memory, or -1 outside the tensor) for all elements of the box at `at`.
template <int RANK, class Visit> void tf_each_of_box(const tf_tensor_view<RANK>& view, const long long (&at)[RANK], Visit visit) {
  long long count = 1;
  for (int d = 0; d < RANK; ++d) count *= view.box[d];
  for (long long n = 0; n < count; ++n) {
    long long rest = n, place = view.first;
    bool inside = true;
    for (int d = RANK - 1; d >= 0; --d) {
      const long long coordinate = at[d] + rest % view.box[d];
      rest /= view.box[d];
      inside = inside && coordinate >= 0 && coordinate < view.extents[d];
      place += coordinate * view.strides[d];
    }
    visit(n, inside ? place : -1);
  }
}

//@ tf_tensor_copy
template <class T, int RANK> void tf_tensor_copy(T* shared, const T* memory, const tf_tensor_view<RANK>& view, const long long (&at)[RANK]) {
  tf_each_of_box(view, at, [&](long long n, long long place) { shared[n] = place < 0 ? T() : memory[place]; });
}

//@ tf_tensor_store
template <class T, int RANK> void tf_tensor_store(T* memory, const tf_tensor_view<RANK>& view, const T* shared, const long long (&at)[RANK]) {
  tf_each_of_box(view, at, [&](long long n, long long place) { if (place >= 0) memory[place] = shared[n]; });
}
