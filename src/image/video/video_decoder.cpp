#include "image/video/video_decoder.h"

extern "C" {
#include <libavutil/pixdesc.h>
}

#include <cstring>
#include <new>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::image {

namespace {

UserError make_damaged_video_error(const std::string& name, int code) {
  return data_error("{}: the video is damaged ({}); replace the file or drop the sample", name,
                    get_ffmpeg_error_message(code));
}

}  // namespace

VideoDecoder::VideoDecoder(VideoContainer& container) : container_(container), frame_(av_frame_alloc()) {
  const AVCodecParameters& parameters = *container.stream().codecpar;
  const AVCodec* codec = avcodec_find_decoder(parameters.codec_id);
  if (codec == nullptr) {
    throw data_error("{}: FFmpeg on this machine has no decoder for {}; convert the video, for example to H.264",
                     container.name(), avcodec_get_name(parameters.codec_id));
  }
  codec_context_.reset(avcodec_alloc_context3(codec));
  int code = avcodec_parameters_to_context(codec_context_.get(), &parameters);
  codec_context_->pkt_timebase = container.stream().time_base;
  codec_context_->thread_count = 1;
  codec_context_->max_pixels = kMaxFramePixels;
  if (code >= 0) code = avcodec_open2(codec_context_.get(), codec, nullptr);
  if (code < 0) throw make_damaged_video_error(container.name(), code);
}

const AVFrame* VideoDecoder::decode_next_frame() {
  while (true) {
    const int code = avcodec_receive_frame(codec_context_.get(), frame_.get());
    if (code == AVERROR_EOF) return nullptr;
    if (code == AVERROR(EAGAIN)) {
      send_packet(container_.read_packet());
      continue;
    }
    if (code < 0) throw make_damaged_video_error(container_.name(), code);
    if ((frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0 || frame_->decode_error_flags != 0) {
      throw make_damaged_video_error(container_.name(), AVERROR_INVALIDDATA);
    }
    num_decoded_pixels_ += int64_t{frame_->width} * frame_->height;
    if (num_decoded_pixels_ > kMaxDecodedPixelsPerVideo) {
      throw data_error(
          "{}: reading its frames would decode more than {:.0f} billion pixels; split the video, shrink its frames, or "
          "encode it again with more key frames",
          container_.name(), static_cast<double>(kMaxDecodedPixelsPerVideo) / 1e9);
    }
    return frame_.get();
  }
}

void VideoDecoder::send_packet(const AVPacket* packet) {
  const int code = avcodec_send_packet(codec_context_.get(), packet);
  if (code < 0) throw make_damaged_video_error(container_.name(), code);
}

InterleavedPixels RgbConverter::convert(const AVFrame& frame, const std::string& name) {
  prepare_scaler({frame.width, frame.height, frame.format, frame.colorspace, frame.color_range == AVCOL_RANGE_JPEG},
                 name);
  sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rgb_frame_->data, rgb_frame_->linesize);
  InterleavedPixels pixels({frame.height, frame.width}, 3);
  for (int64_t y = 0; y < frame.height; ++y) {
    std::memcpy(&pixels.samples[y * pixels.row_bytes()], rgb_frame_->data[0] + y * rgb_frame_->linesize[0],
                pixels.row_bytes());
  }
  return pixels;
}

void RgbConverter::prepare_scaler(const ScalerSettings& settings, const std::string& name) {
  if (scaler_ && settings == scaler_settings_) return;
  scaler_settings_ = settings;
  scaler_.reset(sws_getContext(settings.width, settings.height, static_cast<AVPixelFormat>(settings.format),
                               settings.width, settings.height, AV_PIX_FMT_RGB24, SWS_BICUBIC, nullptr, nullptr,
                               nullptr));
  if (!scaler_) {
    throw data_error(
        "{}: cannot convert the video's pixels to RGB ({}); convert the video, for example to H.264 yuv420p", name,
        get_ffmpeg_error_message(AVERROR(EINVAL)));
  }
  // swscale converts RGB of more than 8 bits through YUV and would apply the range only once.
  const bool is_rgb =
      (av_pix_fmt_desc_get(static_cast<AVPixelFormat>(settings.format))->flags & AV_PIX_FMT_FLAG_RGB) != 0;
  int* input_coefficients = nullptr;
  int* output_coefficients = nullptr;
  int full_range = 0;
  int rgb_range = 0;
  int brightness = 0;
  int contrast = 0;
  int saturation = 0;
  if (!is_rgb && sws_getColorspaceDetails(scaler_.get(), &input_coefficients, &full_range, &output_coefficients,
                                          &rgb_range, &brightness, &contrast, &saturation) >= 0) {
    // Formats such as yuvj420p imply full range.
    sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(settings.matrix), full_range | int{settings.full_range},
                             output_coefficients, rgb_range, brightness, contrast, saturation);
  }
  // swscale writes whole vectors beyond the end of a row; the rows are padded for that.
  rgb_frame_.reset(av_frame_alloc());
  rgb_frame_->format = AV_PIX_FMT_RGB24;
  rgb_frame_->width = settings.width;
  rgb_frame_->height = settings.height;
  if (av_frame_get_buffer(rgb_frame_.get(), 0) < 0) throw std::bad_alloc();
}

}  // namespace vlmtrain::image
