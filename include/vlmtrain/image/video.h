#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

struct VideoInfo {
  int64_t frames;              ///< at least 1
  double fps;                  ///< average over the whole video, as its container or io::Medium::fps has it; 0: unknown
  ImageSize size;              ///< of each frame, upright
  bool is_frame_list = false;  ///< its frames are images that were given one by one: somebody chose them
  bool is_folder = false;      ///< its frames are the images of a folder
};

/// A video of more frames is refused: 4.6 hours at 30 a second.
inline constexpr int64_t kMaxVideoFrames = 500'000;

/// A video is refused once so many pixels of its frames had to be decoded: 2.4 hours of 1080p at 30 frames a second.
inline constexpr int64_t kMaxDecodedPixels = int64_t{1} << 39;

/// The most memory that reading a video's frames one by one takes at a time: the pictures that a codec refers to (16
/// and the one in work, of 4:2:0), the frame as RGB, and as planes.
constexpr int64_t estimate_frame_decoding_bytes(ImageSize size) {
  constexpr int64_t kReferences = int64_t{17} * 3 / 2 + 1, kRgb = 6, kPlanes = 3;  // a pixel
  return (kReferences + kRgb + kPlanes) * size.height * size.width;
}

/// Takes a frame, uint8 [3, height, width] RGB, contiguous, on the CPU. It is valid until the call returns.
using FrameCallback = std::function<void(const at::Tensor& frame)>;

/// A video: a file that FFmpeg's libraries read, or its bytes; a folder of JPEG, PNG and WebP files, which are its
/// frames in natural order of their names (frame2 before frame10), while the folder's other files do not count; or a
/// list of pictures (io::Medium::frames), which are its frames in their order.
///
/// The frames are those of TorchCodec, which transformers 5.23 reads videos with, and with the same FFmpeg under it
/// they have the same bytes: converted by swscale (bicubic) with the frame's own matrix (BT.601 where it names none)
/// and range, rotated as the file's display matrix says. Alpha is dropped and deeper samples become 8 bits, as swscale
/// does it; pixels that are not square stay as they are. Frames are counted as shown: a frame of a variable rate is
/// one frame, however long it is on the screen, and what an edit list cuts off does not count.
///
/// What is missing, damaged, cut off, too large (67 million pixels a frame, kMaxVideoFrames, kMaxDecodedPixels) or no
/// video at all is a data error that names the file; a frame that the codec had to guess at is damaged. For one thread,
/// which is also the decoder's.
class VideoFile {
 public:
  /// Reads what `info` tells: of MP4 and MOV files the index only, of others all packets. Frames are decoded for that
  /// only where packets do not tell them (no times, as in AVI; MPEG-4 part 2, which has packets without one). The file
  /// stays open.
  /// Of a folder or list the names, and the header of the first frame.
  explicit VideoFile(const io::MediaRef& video);
  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;
  ~VideoFile();

  const VideoInfo& info() const;

  /// Hands the frames of these indices, ascending, repeats allowed, to `take` one by one; one frame at a time is in
  /// memory. Decodes from the key frame before each wanted frame on, or from the start where packets do not tell which
  /// frame that is. After an error the video can only be destroyed.
  void read(std::span<const int64_t> frames, const FrameCallback& take);

  /// What `info` and `read` stand on; src/image/frame_source.h.
  class FrameSource;

 private:
  std::unique_ptr<FrameSource> source_;
};

}  // namespace vlmtrain::image
