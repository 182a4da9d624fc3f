#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kMaxThreads = 512;

/// A pack of a head's first half and the one of its second that it pairs with are a thread's.
template <class T, int kCount>
__device__ __forceinline__ void rotate_pairs(const T* from, T* to, int64_t half, const float* cos, const float* sin,
                                             float direction) {
  const auto low = load<kCount>(from);
  const auto high = load<kCount>(from + half);
  const auto cosine = load<kCount>(cos);
  const auto sine = load<kCount>(sin);
  Pack<T, kCount> rotated_low, rotated_high;
  for (int i = 0; i < kCount; ++i) {
    const float a = to_float(low.values[i]), b = to_float(high.values[i]);
    const float c = cosine.values[i], s = sine.values[i] * direction;
    rotated_low.values[i] = from_float<T>(a * c - b * s);
    rotated_high.values[i] = from_float<T>(b * c + a * s);
  }
  store<kCount>(to, rotated_low);
  store<kCount>(to + half, rotated_high);
}

template <class T, int kCount>
__global__ void rope_kernel(const __grid_constant__ Rope args) {
  const int64_t half = args.features / 2, row = blockIdx.x;
  // 32 bits: their divisions are much cheaper than those of 64.
  const auto packs_per_head = static_cast<unsigned>(half / kCount);
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  int64_t head = index / packs_per_head;
  const int64_t pair = int64_t{index % packs_per_head} * kCount;
  const int64_t angle_offset = row * half + pair;

  const bool is_query = head < args.query.heads, is_rotated = head < args.query.heads + args.key.heads;
  if (head >= args.query.heads + args.key.heads + args.value.heads) return;
  // Each parameter by its name, so that none is read from a place that has to be computed first.
  const auto select = [&](auto query, auto key, auto value) { return is_query ? query : is_rotated ? key : value; };
  head -= select(int64_t{0}, args.query.heads, args.query.heads + args.key.heads);
  const auto* const source = static_cast<const T*>(select(args.query.from, args.key.from, args.value.from));
  auto* const destination = static_cast<T*>(select(args.query.to, args.key.to, args.value.to));
  const int64_t head_offset = head * args.features + pair;
  const T* const from =
      source + row * select(args.query.from_stride, args.key.from_stride, args.value.from_stride) + head_offset;
  T* const to =
      destination + row * select(args.query.to_stride, args.key.to_stride, args.value.to_stride) + head_offset;
  if (is_rotated) {
    rotate_pairs<T, kCount>(from, to, half, args.cos + angle_offset, args.sin + angle_offset, args.direction);
  } else {
    store<kCount>(to, load<kCount>(from));
    store<kCount>(to + half, load<kCount>(from + half));
  }
}

template <class T>
bool fits(const Rope& args) {
  constexpr int kCount = kPackElements<T>;
  for (const Rope::Heads* heads : {&args.query, &args.key, &args.value}) {
    if (!can_load_packs<T>(heads->from_stride, heads->from) || !can_load_packs<T>(heads->to_stride, heads->to))
      return false;
  }
  return can_load_packs<float, kCount>(args.features / 2, args.cos, args.sin);
}

template <class T, int kCount>
int launch_kernel(const Rope& args, void* stream) {
  const int64_t packs = (args.query.heads + args.key.heads + args.value.heads) * (args.features / 2 / kCount);
  const EvenBlocks row_blocks(packs, kMaxThreads);
  const Size grid{static_cast<unsigned>(args.rows), row_blocks.blocks, 1};
  return launch(rope_kernel<T, kCount>, grid, Size{row_blocks.threads, 1, 1}, stream, args);
}

}  // namespace

int rope(const Rope& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return fits<T>(args) ? launch_kernel<T, kPackElements<T>>(args, stream) : launch_kernel<T, 1>(args, stream);
  });
}

}  // namespace vlmtrain::kernels
