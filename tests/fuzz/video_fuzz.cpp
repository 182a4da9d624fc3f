#include "fuzz/input.h"
#include "vlmtrain/image/video.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    const vlmtrain::fuzz::InputFile file(data, size);
    vlmtrain::image::VideoFile video(file.path());
    const auto info = video.info();
    constexpr int64_t kQuick = 1 << 20;
    if (info.frames < 1 || info.size.height < 1) std::abort();
    if (info.size.height * info.size.width > kQuick) return;
    const int64_t wanted[] = {0, info.frames / 2, info.frames - 1};
    video.read(wanted, [](const at::Tensor&) {});
  });
  return 0;
}
