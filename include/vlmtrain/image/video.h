#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

struct VideoInfo {
  int64_t frames;  ///< at least 1
  double fps;      ///< average over the whole video, as its container tells it; 0: unknown, as for a folder
  ImageSize size;  ///< of each frame, upright
};

/// A video: a file that FFmpeg's libraries read, or a folder of JPEG, PNG and WebP files, which are its frames in
/// natural order of their names (frame2 before frame10); the folder's other files do not count.
///
/// The frames are those of TorchCodec, which transformers 5.23 reads videos with, and with the same FFmpeg under it
/// they have the same bytes: converted by swscale (bicubic) with the frame's own matrix (BT.601 where it names none)
/// and range, rotated as the file's display matrix says. Alpha is dropped and deeper samples become 8 bits, as swscale
/// does it; pixels that are not square stay as they are. Frames are counted as shown: a frame of a variable rate is
/// one frame, however long it is on the screen, and what an edit list cuts off does not count.
///
/// What is missing, damaged, cut off, too large (67 million pixels a frame) or no video at all is a data error that
/// names the file; a frame that the codec had to guess at is damaged. Thread-safe: each read has its own decoder, of
/// one thread.
class VideoFile {
 public:
  /// Reads what `info` tells: of MP4 and MOV files the index only, of others all packets. Frames are decoded for that
  /// only where packets do not tell them (no times, as in AVI; MPEG-4 part 2 and VP8, which have packets without one).
  explicit VideoFile(std::filesystem::path path);
  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;
  ~VideoFile();

  const VideoInfo& info() const;

  /// Frames by index, ascending, repeats allowed: uint8 [n, 3, height, width] RGB, contiguous, on the CPU. Decodes from
  /// the key frame before each wanted frame on, or from the start where packets do not tell which frame that is.
  at::Tensor read(std::span<const int64_t> frames) const;

  /// What `info` and `read` stand on; src/image/frame_source.h.
  class Source;

 private:
  std::unique_ptr<const Source> source_;
};

}  // namespace vlmtrain::image
