#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 128;
constexpr int kPacks = 4;               // of a thread, in the place
constexpr int64_t kMostBlocks = 65535;  // of a grid's second dimension

/// blockIdx.x is the patch. Neighbours in a line of a patch are neighbours in the picture, so packs are of one line.
template <class T, int kCount>
__global__ void patches_kernel(const __grid_constant__ Patches call) {
  const int64_t across = call.width / call.patch_width;
  const int64_t patches = call.height / call.patch_height * across;
  const int64_t place = blockIdx.x / patches, patch = blockIdx.x % patches;
  const int64_t picture = call.order == nullptr ? place : call.order[place];
  const uint8_t* const corner = call.bytes + picture * kPixelChannels * call.height * call.width +
                                patch / across * call.patch_height * call.width + patch % across * call.patch_width;

  // 32 bits: their divisions are much cheaper than those of 64.
  const auto patch_width = static_cast<uint32_t>(call.patch_width);
  const auto patch_height = static_cast<uint32_t>(call.patch_height);
  const uint32_t columns = uint32_t{kPixelChannels} * patch_height * patch_width;
  T* const row = static_cast<T*>(call.rows) + int64_t{blockIdx.x} * columns;
  for (uint32_t column = (blockIdx.y * kThreads + threadIdx.x) * kCount; column < columns;
       column += gridDim.y * kThreads * kCount) {
    const uint32_t line = column / patch_width;
    const uint32_t channel = line / patch_height;
    const auto read =
        load<kCount>(corner + (channel * call.height + line % patch_height) * call.width + column % patch_width);
    // By their names, so that none is read from a place that has to be computed first.
    const auto of_channel = [&](const float(&values)[kPixelChannels]) {
      return channel == 0 ? values[0] : channel == 1 ? values[1] : values[2];
    };
    const float mean = of_channel(call.mean), deviation = of_channel(call.deviation);
    Pack<T, kCount> result;
    for (int i = 0; i < kCount; ++i) {
      result.values[i] = from_float<T>(__fdiv_rn(__fsub_rn(static_cast<float>(read.values[i]), mean), deviation));
    }
    store<kCount>(row + column, result);
  }
}

template <class T, int kCount>
bool fits(const Patches& call) {
  return in_packs<uint8_t, kCount>(call.width, call.bytes) &&
         in_packs<T, kCount>(call.patch_width, static_cast<const T*>(call.rows));
}

template <class T, int kCount>
int start(const Patches& call, void* stream) {
  const int64_t rows = call.pictures * (call.height / call.patch_height) * (call.width / call.patch_width);
  const int64_t packs = kPixelChannels * call.patch_height * call.patch_width / kCount;
  const unsigned blocks = blocks_for(packs, int64_t{kThreads} * kPacks);
  const Size grid{static_cast<unsigned>(rows), blocks < kMostBlocks ? blocks : static_cast<unsigned>(kMostBlocks), 1};
  return launch(patches_kernel<T, kCount>, grid, Size{kThreads, 1, 1}, stream, call);
}

}  // namespace

int patches(const Patches& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kCount = kPackElements<T>;
    if (fits<T, kCount>(call)) return start<T, kCount>(call, stream);
    return fits<T, 2>(call) ? start<T, 2>(call, stream) : start<T, 1>(call, stream);  // 14 pixels wide, as CLIP's
  });
}

}  // namespace vlmtrain::kernels
