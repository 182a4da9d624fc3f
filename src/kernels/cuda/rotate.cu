#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kMostThreads = 512;

/// A pack of a head's first half and the one of its second that it pairs with are a thread's.
template <class T, int kCount>
__device__ __forceinline__ void rotate_pack(const T* from, T* to, int64_t half, const float* cos, const float* sin,
                                            float direction) {
  const auto low = load<kCount>(from);
  const auto high = load<kCount>(from + half);
  const auto cosine = load<kCount>(cos);
  const auto sine = load<kCount>(sin);
  Pack<T, kCount> new_low, new_high;
  for (int i = 0; i < kCount; ++i) {
    const float a = to_float(low.values[i]), b = to_float(high.values[i]);
    const float c = cosine.values[i], s = sine.values[i] * direction;
    new_low.values[i] = from_float<T>(a * c - b * s);
    new_high.values[i] = from_float<T>(b * c + a * s);
  }
  store<kCount>(to, new_low);
  store<kCount>(to + half, new_high);
}

template <class T, int kCount>
__global__ void rotate_kernel(const __grid_constant__ Rotate call) {
  const int64_t half = call.features / 2, row = blockIdx.x;
  // 32 bits: their divisions are much cheaper than those of 64.
  const auto packs_of_head = static_cast<unsigned>(half / kCount);
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  int64_t head = index / packs_of_head;
  const int64_t pair = int64_t{index % packs_of_head} * kCount;
  const int64_t place = row * half + pair;

  const bool is_query = head < call.query.heads, is_rotated = head < call.query.heads + call.key.heads;
  if (head >= call.query.heads + call.key.heads + call.value.heads) return;
  // Each parameter by its name, so that none is read from a place that has to be computed first.
  const auto of_part = [&](auto query, auto key, auto value) { return is_query ? query : is_rotated ? key : value; };
  head -= of_part(int64_t{0}, call.query.heads, call.query.heads + call.key.heads);
  const auto* const all = static_cast<const T*>(of_part(call.query.from, call.key.from, call.value.from));
  auto* const all_to = static_cast<T*>(of_part(call.query.to, call.key.to, call.value.to));
  const int64_t place_of_head = head * call.features + pair;
  const T* const from =
      all + row * of_part(call.query.from_stride, call.key.from_stride, call.value.from_stride) + place_of_head;
  T* const to = all_to + row * of_part(call.query.to_stride, call.key.to_stride, call.value.to_stride) + place_of_head;
  if (is_rotated) {
    rotate_pack<T, kCount>(from, to, half, call.cos + place, call.sin + place, call.direction);
  } else {
    store<kCount>(to, load<kCount>(from));
    store<kCount>(to + half, load<kCount>(from + half));
  }
}

template <class T>
bool in_packs_of(const Rotate& call) {
  constexpr int kCount = kPackElements<T>;
  for (const Rotate::Heads* heads : {&call.query, &call.key, &call.value}) {
    if (!in_packs<T>(heads->from_stride, heads->from) || !in_packs<T>(heads->to_stride, heads->to)) return false;
  }
  return in_packs<float, kCount>(call.features / 2, call.cos, call.sin);
}

template <class T, int kCount>
int start(const Rotate& call, void* stream) {
  const int64_t packs = (call.query.heads + call.key.heads + call.value.heads) * (call.features / 2 / kCount);
  const EvenBlocks of_row(packs, kMostThreads);
  const Size grid{static_cast<unsigned>(call.rows), of_row.blocks, 1};
  return launch(rotate_kernel<T, kCount>, grid, Size{of_row.threads, 1, 1}, stream, call);
}

}  // namespace

int rotate(const Rotate& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    return in_packs_of<T>(call) ? start<T, kPackElements<T>>(call, stream) : start<T, 1>(call, stream);
  });
}

}  // namespace vlmtrain::kernels
