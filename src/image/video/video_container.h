#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "image/codec/orientation.h"
#include "image/video/ffmpeg.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// The maximum number of pixels of a frame, since a codec keeps up to sixteen frames. The highest
/// levels of H.264, HEVC and AV1 allow 36 million.
inline constexpr int64_t kMaxFramePixels = int64_t{1} << 26;

/// The packets of the video stream of a file or of its bytes. Errors are UserErrors (kBadData) that
/// name the file.
class VideoContainer {
 public:
  explicit VideoContainer(const io::MediaRef& video);

  const std::string& name() const { return name_; }
  const AVStream& stream() const { return *stream_; }
  ImageSize get_stored_size() const { return {stream_->codecpar->height, stream_->codecpar->width}; }

  /// Returns the rotation of the stream's display matrix; kUpright without one, or if the angle is
  /// not a multiple of 90 degrees.
  Orientation orientation() const;

  /// Returns the number of displayed samples in the index of an MP4 or MOV file; 0 for other
  /// containers, or if the index may be incomplete (fragments). Throws if the file ends before its
  /// last sample.
  int64_t count_indexed_samples() const;

  /// Returns the next packet with data, or null after the last one. Valid until the next call.
  const AVPacket* next_packet();

  /// Seeks to the last key frame at or before these times. Returns false if the container cannot
  /// seek.
  bool seek(int64_t presentation_time, int64_t decoding_time);

 private:
  bool is_mov() const;

  std::string name_;
  std::unique_ptr<MemoryInput> input_;  // null for a file; before context_, which uses it in its destructor
  FormatContextPtr context_;
  PacketPtr packet_;
  AVStream* stream_ = nullptr;
};

/// The times of a frame from its packet, in the stream's time base.
struct FrameTime {
  int64_t presentation_time;
  int64_t decoding_time;  ///< AV_NOPTS_VALUE: unknown
  bool is_key;
};

/// Returns whether each packet of the codec is one displayed frame. VP8 has packets that are only
/// references; MPEG-4 part 2 has packets that repeat the previous frame.
bool packets_are_frames(AVCodecID codec);

/// Reads the remaining packets and returns the frames in the order of presentation. Returns nothing
/// if packets do not identify frames: without times, with equal times, or in MPEG-4 part 2. Throws
/// for more than kMaxVideoFrames.
std::vector<FrameTime> read_frame_times(VideoContainer& container);

}  // namespace vlmtrain::image
