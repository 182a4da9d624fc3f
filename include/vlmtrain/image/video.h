#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// The properties of a video.
struct VideoInfo {
  int64_t frames;              ///< at least 1
  double fps;                  ///< average, from the container or io::MediaRef::fps; 0: unknown
  ImageSize size;              ///< of each frame, with its rotation applied
  bool is_frame_list = false;  ///< the frames are listed images, chosen by the author of the data set
  bool is_folder = false;      ///< the frames are the images of a folder
};

/// The maximum number of frames: 4.6 hours at 30 frames per second.
inline constexpr int64_t kMaxVideoFrames = 500'000;

/// The maximum number of pixels decoded of one video: 2.4 hours of 1080p at 30 frames per second.
inline constexpr int64_t kMaxDecodedPixels = int64_t{1} << 39;

/// Returns the peak memory of reading a video frame by frame: the reference frames of a codec (16
/// and the current one, in 4:2:0), and the frame as RGB and as planes.
constexpr int64_t estimate_frame_decoding_bytes(ImageSize size) {
  constexpr int64_t kReferences = int64_t{17} * 3 / 2 + 1, kRgb = 6, kPlanes = 3;  // bytes per pixel
  return (kReferences + kRgb + kPlanes) * size.height * size.width;
}

/// Receives a frame, uint8 [3, height, width] RGB, contiguous, on the CPU; valid until the call
/// returns.
using FrameCallback = std::function<void(const at::Tensor& frame)>;

/// A video: a file or its bytes, read by FFmpeg's libraries; a folder of JPEG, PNG and WebP files,
/// which are the frames in natural order of their names (frame2 before frame10), with other files
/// ignored; or a list of images (io::MediaRef::frames) in their order.
///
/// Frames equal those of TorchCodec, the video reader of transformers 5.23; with the same FFmpeg
/// version, to the byte. They are converted by swscale (bicubic) with the frame's own matrix
/// (default BT.601) and range, and rotated by the file's display matrix. As in swscale, alpha is
/// dropped and deeper samples are reduced to 8 bits. Pixels that are not square are not corrected.
/// Frames are counted as displayed: frames of variable rate count once, and frames cut by an edit
/// list do not count.
///
/// Missing, corrupt, truncated and oversized videos (67 million pixels per frame, kMaxVideoFrames,
/// kMaxDecodedPixels) are data errors that name the file. A frame that the codec had to conceal
/// counts as corrupt. Not thread-safe; decodes on the calling thread alone.
class VideoFile {
 public:
  /// Opens a video and reads its properties: of MP4 and MOV files the index only, of other
  /// containers all packets. Frames are decoded for this only if packets do not identify them (no
  /// times, as in AVI; MPEG-4 part 2, which has packets without a frame). For a folder or list,
  /// reads the names and the header of the first image.
  explicit VideoFile(const io::MediaRef& video);
  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;
  ~VideoFile();

  const VideoInfo& info() const;

  /// Calls `take` with the frames of these indices one by one, holding one frame in memory. Decodes
  /// from the key frame before each requested frame, or from the start if packets do not identify
  /// frames. After an error the object can only be destroyed. REQUIRES: ascending indices, repeats
  /// allowed.
  void read(std::span<const int64_t> frames, const FrameCallback& take);

  /// The implementations; see src/image/video/frame_source.h.
  class FrameSource;

 private:
  std::unique_ptr<FrameSource> source_;
};

}  // namespace vlmtrain::image
