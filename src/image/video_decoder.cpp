#include "image/video_decoder.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::image {
namespace {

UserError make_damaged_error(const std::string& name, int code) {
  return data_error("{}: the video is damaged ({}); replace the file or drop the sample", name, get_ffmpeg_error(code));
}

}  // namespace

VideoDecoder::VideoDecoder(VideoContainer& container) : container_(container), frame_(av_frame_alloc()) {
  const AVCodecParameters& parameters = *container.stream().codecpar;
  const AVCodec* codec = avcodec_find_decoder(parameters.codec_id);
  if (codec == nullptr) {
    throw data_error("{}: FFmpeg here has no decoder for {}; convert the video, say to H.264", container.name(),
                     avcodec_get_name(parameters.codec_id));
  }
  context_.reset(avcodec_alloc_context3(codec));
  int code = avcodec_parameters_to_context(context_.get(), &parameters);
  context_->pkt_timebase = container.stream().time_base;
  context_->thread_count = 1;
  context_->max_pixels = kMaxFramePixels;
  if (code >= 0) code = avcodec_open2(context_.get(), codec, nullptr);
  if (code < 0) throw make_damaged_error(container.name(), code);
}

const AVFrame* VideoDecoder::next() {
  while (true) {
    const int code = avcodec_receive_frame(context_.get(), frame_.get());
    if (code == AVERROR_EOF) return nullptr;
    if (code == AVERROR(EAGAIN)) {
      send_packet(container_.next_packet());
      continue;
    }
    if (code < 0) throw make_damaged_error(container_.name(), code);
    if ((frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0 || frame_->decode_error_flags != 0) {
      throw make_damaged_error(container_.name(), AVERROR_INVALIDDATA);
    }
    decoded_pixels_ += int64_t{frame_->width} * frame_->height;
    if (decoded_pixels_ > kMaxDecodedPixels) {
      throw data_error(
          "{}: more than {:.0f} billion pixels would have to be decoded for its frames; cut the video into parts, make "
          "its frames smaller, or encode it again with more key frames",
          container_.name(), static_cast<double>(kMaxDecodedPixels) / 1e9);
    }
    return frame_.get();
  }
}

void VideoDecoder::send_packet(const AVPacket* packet) {
  const int code = avcodec_send_packet(context_.get(), packet);
  if (code < 0) throw make_damaged_error(container_.name(), code);
}

}  // namespace vlmtrain::image
