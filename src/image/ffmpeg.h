#pragma once

#include <memory>
#include <string>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>
}

namespace vlmtrain::image {

/// Calls a function of FFmpeg's that frees what a pointer points to and clears the pointer.
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

struct ScalerDeleter {
  void operator()(SwsContext* context) const { sws_freeContext(context); }
};
using ScalerPtr = std::unique_ptr<SwsContext, ScalerDeleter>;

/// Takes FFmpeg's messages off stderr, for the whole process, and forgets those of this thread so far.
void capture_ffmpeg_messages();

/// Why a call failed: the first message of an error since capture_ffmpeg_messages in this thread, else what `code`
/// means.
std::string get_ffmpeg_error(int code);

}  // namespace vlmtrain::image
