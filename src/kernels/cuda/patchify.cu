#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreadsPerBlock = 128;  // divides the threads per multiprocessor of every architecture
constexpr int kPacksPerThread = 4;          // if there are enough; not tuned by a recorded benchmark
constexpr int64_t kMaxGridHeight = 65535;   // CUDA's limit of a grid's y dimension

/// blockIdx.x is the patch among those of all images, and blockIdx.y a range of its packs.
/// kPackSize divides the width of a patch, so a pack never crosses a line and its bytes are
/// neighbors in the image.
template <class T, int kPackSize>
__global__ void patchify_kernel(const __grid_constant__ PatchifyArgs args) {
  const int64_t patches_per_row = args.width / args.patch_width;
  const int64_t num_patches = args.height / args.patch_height * patches_per_row;
  const int64_t index = blockIdx.x / num_patches, patch = blockIdx.x % num_patches;
  const int64_t image = args.order == nullptr ? index : args.order[index];
  const uint8_t* const patch_corner = args.bytes + image * kNumPixelChannels * args.height * args.width +
                                      patch / patches_per_row * args.patch_height * args.width +
                                      patch % patches_per_row * args.patch_width;

  // 32-bit divisions are much cheaper than 64-bit ones.
  const auto patch_width = static_cast<uint32_t>(args.patch_width);
  const auto patch_height = static_cast<uint32_t>(args.patch_height);
  const uint32_t columns = uint32_t{kNumPixelChannels} * patch_height * patch_width;
  T* const row = static_cast<T*>(args.rows) + int64_t{blockIdx.x} * args.row_stride;
  for (uint32_t column = (blockIdx.y * kThreadsPerBlock + threadIdx.x) * kPackSize; column < columns;
       column += gridDim.y * kThreadsPerBlock * kPackSize) {
    const uint32_t line = column / patch_width;
    const uint32_t channel = line / patch_height;
    const auto packed = load<kPackSize>(patch_corner + (channel * args.height + line % patch_height) * args.width +
                                        column % patch_width);
    // Constant indices keep the arguments in constant memory instead of copying them to local
    // memory.
    const auto select_channel = [&](const float(&values)[kNumPixelChannels]) {
      return channel == 0 ? values[0] : channel == 1 ? values[1] : values[2];
    };
    const float mean = select_channel(args.mean), deviation = select_channel(args.deviation);
    Pack<T, kPackSize> result;
    for (int i = 0; i < kPackSize; ++i) {
      result.values[i] = from_float<T>(__fdiv_rn(__fsub_rn(static_cast<float>(packed.values[i]), mean), deviation));
    }
    store<kPackSize>(row + column, result);
  }
  if (blockIdx.y != 0) return;
  for (int64_t column = columns + int64_t{threadIdx.x} * kPackSize; column < args.row_stride;
       column += kThreadsPerBlock * kPackSize)
    store<kPackSize>(row + column, Pack<T, kPackSize>{});
}

template <class T, int kPackSize>
bool can_use_packs(const PatchifyArgs& args) {
  return can_load_packs<uint8_t, kPackSize>(args.width, args.bytes) &&
         can_load_packs<T, kPackSize>(args.patch_width, static_cast<const T*>(args.rows)) &&
         args.row_stride % kPackSize == 0;
}

template <class T, int kPackSize>
int launch_kernel(const PatchifyArgs& args, void* stream) {
  const int64_t rows = args.num_images * (args.height / args.patch_height) * (args.width / args.patch_width);
  const int64_t packs = kNumPixelChannels * args.patch_height * args.patch_width / kPackSize;
  const unsigned blocks = count_blocks(packs, int64_t{kThreadsPerBlock} * kPacksPerThread);
  const Dim3 grid{static_cast<unsigned>(rows), blocks < kMaxGridHeight ? blocks : static_cast<unsigned>(kMaxGridHeight),
                  1};
  return launch(patchify_kernel<T, kPackSize>, grid, Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

}  // namespace

int patchify(const PatchifyArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPackSize = kMaxPackSize<T>;
    if (can_use_packs<T, kPackSize>(args)) return launch_kernel<T, kPackSize>(args, stream);
    // Patches that are 14 pixels wide, as CLIP's, are read in pairs.
    return can_use_packs<T, 2>(args) ? launch_kernel<T, 2>(args, stream) : launch_kernel<T, 1>(args, stream);
  });
}

}  // namespace vlmtrain::kernels
