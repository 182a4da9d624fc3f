#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "image/frame_source.h"
#include "image/frame_times.h"
#include "image/rgb_converter.h"
#include "image/upright.h"
#include "image/video_decoder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

UserError without_frames(const std::string& name) {
  return data_error("{}: a video without frames; replace the file or drop the sample", name);
}

int64_t count_decoded(const std::filesystem::path& file) {
  VideoContainer container(file);
  VideoDecoder decoder(container);
  int64_t frames = 0;
  while (decoder.next() != nullptr) ++frames;
  return frames;
}

int64_t count_frames(VideoContainer& container, const std::filesystem::path& file) {
  if (packets_are_frames(container.stream().codecpar->codec_id)) {
    if (const int64_t samples = container.indexed_samples(); samples > 0) return samples;
    if (const auto times = read_frame_times(container); !times.empty()) return std::ssize(times);
  }
  return count_decoded(file);
}

double frame_rate(const AVStream& stream) {
  for (const AVRational rate : {stream.avg_frame_rate, stream.r_frame_rate}) {
    if (rate.num > 0 && rate.den > 0) return av_q2d(rate);
  }
  return 0;
}

VideoInfo examine(const std::filesystem::path& file) {
  VideoContainer container(file);
  const VideoInfo info{.frames = count_frames(container, file),
                       .fps = frame_rate(container.stream()),
                       .size = upright_size(container.stored_size(), container.orientation())};
  if (info.frames == 0) throw without_frames(container.name());
  return info;
}

/// Frames by index, ascending, through seeks to key frames as long as they lead where they should.
class FrameReader {
 public:
  explicit FrameReader(const std::filesystem::path& file) : file_(file) {
    VideoContainer container(file);
    times_ = read_frame_times(container);
    restart();
  }

  const VideoContainer& container() const { return *container_; }

  const AVFrame& at(int64_t index) {
    if (may_seek_ && !times_.empty()) {
      const int64_t key = last_key(index);
      if (key > position_ && !seek(key)) give_up_seeking();
    }
    const AVFrame* frame = nullptr;
    while (position_ <= index) {
      frame = decode();
      if (frame == nullptr) {
        give_up_seeking();
        continue;
      }
      ++position_;
    }
    return *frame;
  }

 private:
  /// At the file's first packet, with a fresh decoder.
  void restart() {
    decoder_.reset();
    container_.emplace(file_);
    decoder_.emplace(*container_);
    position_ = 0;
    sought_ = false;
  }

  void give_up_seeking() {
    may_seek_ = false;
    restart();
  }

  /// The frame at position_; nullptr where another one comes and a seek may be why.
  const AVFrame* decode() {
    const AVFrame* frame = decoder_->next();
    if (times_.empty()) {
      if (frame != nullptr) return frame;
      throw undecodable();
    }
    // Pictures that lead a key frame refer to frames before it, which a seek leaves out.
    while (sought_ && frame != nullptr && frame->pts < time_at(position_)) frame = decoder_->next();
    if (frame != nullptr && frame->pts == time_at(position_)) return frame;
    if (sought_) return nullptr;
    throw undecodable();
  }

  UserError undecodable() const {
    return data_error("{}: frame {} cannot be decoded ({}); encode the video again or drop the sample",
                      container_->name(), position_, ffmpeg_reason(AVERROR_INVALIDDATA));
  }

  std::optional<int64_t> index_of(int64_t time) const {
    const auto found = std::ranges::lower_bound(times_, time, {}, &FrameTime::shown);
    if (found == times_.end() || found->shown != time) return std::nullopt;
    return found - times_.begin();
  }

  int64_t time_at(int64_t index) const { return index < std::ssize(times_) ? times_[index].shown : AV_NOPTS_VALUE; }

  int64_t last_key(int64_t index) const {
    while (index > 0 && !times_[index].key) --index;
    return index;
  }

  /// Goes to the key frame at `key`, or to one between position_ and it.
  bool seek(int64_t key) {
    sought_ = true;
    decoder_->flush();
    if (!container_->seek(times_[key].shown, times_[key].decoded)) return false;
    const AVPacket* packet = container_->next_packet();
    if (packet == nullptr || (packet->flags & AV_PKT_FLAG_KEY) == 0) return false;
    const std::optional<int64_t> landed = index_of(packet->pts);
    if (!landed || *landed < position_ || *landed > key) return false;
    decoder_->feed(packet);
    position_ = *landed;
    return true;
  }

  std::filesystem::path file_;
  std::vector<FrameTime> times_;
  std::optional<VideoContainer> container_;
  std::optional<VideoDecoder> decoder_;
  int64_t position_ = 0;  // of the frame that comes next
  bool may_seek_ = true;
  bool sought_ = false;
};

class EncodedVideo final : public VideoFile::Source {
 public:
  explicit EncodedVideo(std::filesystem::path file) : Source(examine(file)), file_(std::move(file)) {}

  void read(std::span<const int64_t> indices, uint8_t* out) const override {
    FrameReader reader(file_);
    RgbConverter converter;
    const Orientation orientation = reader.container().orientation();
    const int64_t frame_bytes = 3 * info().size.height * info().size.width;
    for (size_t i = 0; i < indices.size(); ++i, out += frame_bytes) {
      if (i > 0 && indices[i] == indices[i - 1]) {
        std::memcpy(out, out - frame_bytes, frame_bytes);
        continue;
      }
      const AVFrame& frame = reader.at(indices[i]);
      if (upright_size({frame.height, frame.width}, orientation) != info().size) {
        throw data_error(
            "{}: frame {} is of {} x {} pixels, unlike the first ones; encode the video again or drop the sample",
            file_.string(), indices[i], frame.width, frame.height);
      }
      write_upright_planes(converter.convert(frame, file_.string()), orientation, out);
    }
  }

 private:
  std::filesystem::path file_;
};

}  // namespace

std::unique_ptr<const VideoFile::Source> open_encoded_video(const std::filesystem::path& file) {
  return std::make_unique<const EncodedVideo>(file);
}

}  // namespace vlmtrain::image
