#pragma once

#include <cstdint>
#include <memory>
#include <string>

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

}  // namespace vlmtrain::image
