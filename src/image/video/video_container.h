#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "image/codec/orientation.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>
}

namespace vlmtrain::image {

/// A deleter for FFmpeg's functions that take the address of a pointer, free the object and clear
/// the pointer.
template <auto Free>
struct PointerDeleter {
  template <class T>
  void operator()(T* object) const {
    Free(&object);
  }
};

using FormatContextPtr = std::unique_ptr<AVFormatContext, PointerDeleter<avformat_close_input>>;
using CodecContextPtr = std::unique_ptr<AVCodecContext, PointerDeleter<avcodec_free_context>>;
using PacketPtr = std::unique_ptr<AVPacket, PointerDeleter<av_packet_free>>;
using FramePtr = std::unique_ptr<AVFrame, PointerDeleter<av_frame_free>>;

/// A deleter for swscale's context, whose function takes the pointer itself.
struct ScalerDeleter {
  void operator()(SwsContext* scaler_context) const { sws_freeContext(scaler_context); }
};
using ScalerPtr = std::unique_ptr<SwsContext, ScalerDeleter>;

/// Makes FFmpeg store error messages for get_ffmpeg_error_message() in the whole process, instead
/// of printing messages. Clears the message of this thread. Thread-safe.
void capture_ffmpeg_messages();

/// Returns the first error message of this thread since capture_ffmpeg_messages(), else FFmpeg's
/// description of `code`, an AVERROR.
std::string get_ffmpeg_error_message(int code);

/// An input for FFmpeg that reads a file in memory. Must outlive the format context that uses it.
class MemoryInput {
 public:
  /// Throws std::bad_alloc. REQUIRES: `bytes` is not null.
  explicit MemoryInput(std::shared_ptr<const std::string> bytes);
  MemoryInput(const MemoryInput&) = delete;
  MemoryInput& operator=(const MemoryInput&) = delete;

  /// Returns the context for AVFormatContext::pb. This object owns it.
  AVIOContext* avio_context() { return avio_context_.get(); }

 private:
  // The callbacks of AVIOContext. `opaque` is the MemoryInput.
  static int read(void* opaque, uint8_t* out, int max_bytes);
  static int64_t seek(void* opaque, int64_t offset, int whence);

  struct AvioContextDeleter {
    void operator()(AVIOContext* avio_context) const;
  };

  std::shared_ptr<const std::string> bytes_;
  int64_t position_ = 0;
  std::unique_ptr<AVIOContext, AvioContextDeleter> avio_context_;
};

/// The maximum number of pixels of a frame. Limits memory, since a codec keeps up to 16 reference
/// frames. The highest levels of H.264, HEVC and AV1 allow 36 million.
inline constexpr int64_t kMaxFramePixels = int64_t{1} << 26;

/// A reader of the packets of a file's video stream. The constructor and methods throw UserError
/// (kBadData) with the file's name. Not thread-safe.
class VideoContainer {
 public:
  /// Opens a file, or `video.bytes` if they are set, and selects the video stream that FFmpeg
  /// prefers.
  explicit VideoContainer(const io::MediaRef& video);

  const std::string& name() const { return name_; }
  const AVStream& stream() const { return *stream_; }
  /// Returns the size of a frame before its rotation.
  ImageSize get_stored_size() const { return {stream_->codecpar->height, stream_->codecpar->width}; }

  /// Returns the orientation from the stream's display matrix. Returns kUpright without a matrix,
  /// or if its angle is not a multiple of 90 degrees.
  Orientation orientation() const;

  /// Returns the number of displayed samples in the index of an MP4 or MOV file; 0 for other
  /// containers, or if the index may be incomplete (fragments). Throws if the file ends before the
  /// end of a sample.
  int64_t count_indexed_samples() const;

  /// Reads and returns the next packet of the video stream that has data, or null after the last
  /// one. Valid until the next call.
  const AVPacket* read_packet();

  /// Seeks to the last key frame at or before a frame with these times, in the stream's time base.
  /// Uses the time by which the container's index is sorted. `decoding_time` may be AV_NOPTS_VALUE.
  /// Returns false if the container cannot seek.
  bool seek(int64_t presentation_time, int64_t decoding_time);

 private:
  /// Returns whether the container is MP4 or MOV.
  bool is_mov() const;

  std::string name_;
  std::unique_ptr<MemoryInput> input_;  // null for a file; declared before format_context_, whose destructor uses it
  FormatContextPtr format_context_;
  PacketPtr packet_;
  AVStream* stream_ = nullptr;
};

/// The times of a frame from its packet, in the stream's time base.
struct FrameTime {
  int64_t presentation_time;
  int64_t decoding_time;  ///< AV_NOPTS_VALUE if unknown
  bool is_key_frame;
};

/// Returns whether each packet of the codec is one displayed frame. VP8 has packets of reference
/// frames that are never displayed; MPEG-4 part 2 has packets that repeat the previous frame.
bool has_one_frame_per_packet(AVCodecID codec);

/// Reads the remaining packets and returns the times of displayed frames in presentation order.
/// Returns an empty vector if packets do not identify frames: without times, with equal times, or
/// in MPEG-4 part 2. Throws UserError (kBadData) for more than kMaxVideoFrames.
std::vector<FrameTime> read_frame_times(VideoContainer& container);

}  // namespace vlmtrain::image
