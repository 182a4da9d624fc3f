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
struct FreeThrough {
  template <class T>
  void operator()(T* object) const {
    Free(&object);
  }
};

using FormatContext = std::unique_ptr<AVFormatContext, FreeThrough<avformat_close_input>>;
using CodecContext = std::unique_ptr<AVCodecContext, FreeThrough<avcodec_free_context>>;
using Packet = std::unique_ptr<AVPacket, FreeThrough<av_packet_free>>;
using Frame = std::unique_ptr<AVFrame, FreeThrough<av_frame_free>>;

struct FreeScaler {
  void operator()(SwsContext* context) const { sws_freeContext(context); }
};
using Scaler = std::unique_ptr<SwsContext, FreeScaler>;

/// Takes FFmpeg's messages off stderr, for the whole process, and forgets those of this thread so far.
void begin_ffmpeg_messages();

/// Why a call failed: the first message of an error since begin_ffmpeg_messages in this thread, else what `code` means.
std::string ffmpeg_reason(int code);

}  // namespace vlmtrain::image
