#pragma once

#include <memory>
#include <string>

#include "image/ffmpeg.h"
#include "image/memory_input.h"
#include "image/orientation.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

/// A file with larger frames is refused: a codec keeps up to sixteen of them. The highest levels of H.264, HEVC and AV1
/// have 36 million.
inline constexpr int64_t kMaxFramePixels = int64_t{1} << 26;

/// The packets of the video stream of a file, or of one that lies in memory. Errors are data_errors that name the file.
class VideoContainer {
 public:
  explicit VideoContainer(const io::MediaRef& video);

  const std::string& name() const { return name_; }
  const AVStream& stream() const { return *stream_; }
  ImageSize get_stored_size() const { return {stream_->codecpar->height, stream_->codecpar->width}; }
  /// What the stream's display matrix says; upright where it has none or turns by other than right angles.
  Orientation orientation() const;

  /// The samples in the index of an MP4 or MOV file that are shown; 0 where the file is of another kind or its index is
  /// not known to be whole (fragments). A data error where the file ends before its last sample.
  int64_t count_indexed_samples() const;

  /// The next packet that has data, nullptr after the last one. It is valid until the next call.
  const AVPacket* next_packet();
  /// Goes to the last key frame at or before one with these times; false where the container cannot.
  bool seek(int64_t presentation_time, int64_t decoding_time);

 private:
  bool is_mov() const;

  std::string name_;
  std::unique_ptr<MemoryInput> input_;  // null: a file. The context reads from it to its own end
  FormatContextPtr context_;
  PacketPtr packet_;
  AVStream* stream_ = nullptr;
};

}  // namespace vlmtrain::image
