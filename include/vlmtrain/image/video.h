#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// The properties of a video.
struct VideoInfo {
  int64_t num_frames;            ///< at least 1
  double fps;                    ///< average frame rate, from the container or io::MediaRef::fps; 0 if unknown
  ImageSize size;                ///< of each frame, with the rotation of the file applied
  bool is_frame_list = false;    ///< the frames are the images of io::MediaRef::frames
  bool is_frame_folder = false;  ///< the frames are the images of a folder
};

/// The maximum number of frames of a video: 4.6 hours at 30 frames per second.
inline constexpr int64_t kMaxVideoFrames = 500'000;

/// The maximum number of pixels that one VideoFile decodes: 2.4 hours of 1080p at 30 frames per
/// second.
inline constexpr int64_t kMaxDecodedPixelsPerVideo = int64_t{1} << 39;

/// Returns the peak host memory of reading a video frame by frame, in bytes: 16 reference frames of
/// the codec and the current one in 4:2:0 (1.5 bytes per pixel, rounded up), two copies of the
/// frame as interleaved RGB (from swscale, and without row padding), and the frame as planes.
constexpr int64_t estimate_frame_decoding_memory(ImageSize size) {
  constexpr int64_t kReferenceBytesPerPixel = int64_t{17} * 3 / 2 + 1, kRgbBytesPerPixel = 6,
                    kPlanarBytesPerPixel = 3;  // as listed above
  return (kReferenceBytesPerPixel + kRgbBytesPerPixel + kPlanarBytesPerPixel) * size.height * size.width;
}

/// A function that receives a frame, uint8 [3, height, width] RGB, contiguous, on the CPU. The next
/// frame overwrites its memory: clone it to keep it.
using FrameCallback = std::function<void(const at::Tensor& frame)>;

/// A video, in one of three forms: a file or its bytes, read by FFmpeg's libraries; a folder whose
/// image files are the frames, in natural order of their names (frame2 before frame10), other files
/// being ignored; or a list of images (io::MediaRef::frames).
///
/// Frames equal those of TorchCodec, the video reader of transformers 5.23: byte for byte if the
/// FFmpeg version is the same. Frames are converted by swscale (bicubic) with their own color
/// matrix (default BT.601) and range, and rotated by the file's display matrix. As in swscale,
/// alpha is dropped and deeper samples are reduced to 8 bits. The pixel aspect ratio is ignored.
/// Only displayed frames count: a frame counts once at any frame rate, and frames that an edit list
/// removes do not count.
///
/// Throws UserError (kBadData), with the file's name, for missing, corrupt and truncated videos and
/// for videos beyond a limit: 67 million pixels per frame, kMaxVideoFrames,
/// kMaxDecodedPixelsPerVideo. A frame in which the codec had to conceal errors is corrupt. Not
/// thread-safe; decodes on the calling thread.
class VideoFile {
 public:
  /// Opens a video and reads its properties. Reads only the index of MP4 and MOV files, and all
  /// packets of other containers. Decodes all frames only if packets do not identify them: without
  /// times, as in AVI, or in MPEG-4 part 2, which has packets without a frame. For a folder or
  /// list, reads the names and the header of the first image. `video` may be destroyed afterwards.
  explicit VideoFile(const io::MediaRef& video);
  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;
  ~VideoFile();

  const VideoInfo& info() const;

  /// Calls `callback` with each of the frames at these indices, in order. Holds one frame in
  /// memory. Decodes from the key frame before each requested frame, or from the start if packets
  /// do not identify frames. May be called again, also for earlier frames. After an error the
  /// object can only be destroyed. REQUIRES: ascending indices in 0 to info().num_frames - 1;
  /// repeats are allowed.
  void read_frames(std::span<const int64_t> frames, const FrameCallback& callback);

  /// The interface of the implementations; see src/image/video/frame_source.h.
  class FrameSource;

 private:
  std::unique_ptr<FrameSource> source_;
};

}  // namespace vlmtrain::image
