#include <algorithm>
#include <memory>
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

double frame_rate(const AVStream& stream) {
  for (const AVRational rate : {stream.avg_frame_rate, stream.r_frame_rate}) {
    if (rate.num > 0 && rate.den > 0) return av_q2d(rate);
  }
  return 0;
}

/// Frames by index, ascending, through seeks to key frames as long as they lead where they should. The file is opened
/// once, unless it has to be gone through anew and cannot be wound back.
class FrameReader {
 public:
  explicit FrameReader(const io::Medium& video) : video_(video), container_(std::in_place, video) {}

  const VideoContainer& container() const { return *container_; }

  /// To be called once, before any at().
  int64_t count() {
    if (packets_are_frames(container_->stream().codecpar->codec_id)) {
      if (const int64_t samples = container_->indexed_samples(); samples > 0) {
        check_frames(samples, container_->name());
        return samples;
      }
    }
    if (!times().empty()) return std::ssize(times());
    restart();
    is_placed_ = false;  // it will be at the end
    int64_t frames = 0;
    for (; decoder_->next() != nullptr; ++frames) check_frames(frames + 1, container_->name());
    return frames;
  }

  const AVFrame& at(int64_t index) {
    is_placed_ = is_placed_ && index >= position_;
    if (!times().empty() && may_seek_) {
      const int64_t key = last_key(index);
      if (!is_placed_) {
        begin_at(key);
      } else if (key > position_ && !seek(key)) {
        give_up_seeking();
      }
    }
    if (!is_placed_) restart();
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
  /// Reads all packets, once; the container is at its end then.
  const std::vector<FrameTime>& times() {
    if (!times_) times_ = read_frame_times(*container_);
    return *times_;
  }

  /// At the file's first packet, with a fresh decoder.
  void restart() {
    decoder_.reset();
    container_.emplace(video_);
    decoder_.emplace(*container_);
    position_ = 0;
    sought_ = false;
    is_placed_ = true;
  }

  void give_up_seeking() {
    may_seek_ = false;
    restart();
  }

  /// Winds the file back, which is at its end, to its first wanted frame's key frame.
  void begin_at(int64_t key) {
    if (!times()[key].key) return;
    decoder_.emplace(*container_);
    position_ = 0;
    is_placed_ = seek(key);
  }

  /// The frame at position_; nullptr where another one comes and a seek may be why.
  const AVFrame* decode() {
    const AVFrame* frame = decoder_->next();
    if (times().empty()) {
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

  std::optional<int64_t> index_of(int64_t time) {
    const auto found = std::ranges::lower_bound(times(), time, {}, &FrameTime::shown);
    if (found == times().end() || found->shown != time) return std::nullopt;
    return found - times().begin();
  }

  int64_t time_at(int64_t index) { return index < std::ssize(times()) ? times()[index].shown : AV_NOPTS_VALUE; }

  int64_t last_key(int64_t index) {
    while (index > 0 && !times()[index].key) --index;
    return index;
  }

  /// Goes to the key frame at `key`, or to one between position_ and it.
  bool seek(int64_t key) {
    sought_ = true;
    decoder_->flush();
    if (!container_->seek(times()[key].shown, times()[key].decoded)) return false;
    const AVPacket* packet = container_->next_packet();
    if (packet == nullptr || (packet->flags & AV_PKT_FLAG_KEY) == 0) return false;
    const std::optional<int64_t> landed = index_of(packet->pts);
    if (!landed || *landed < position_ || *landed > key) return false;
    decoder_->feed(packet);
    position_ = *landed;
    return true;
  }

  io::Medium video_;
  std::optional<VideoContainer> container_;
  std::optional<std::vector<FrameTime>> times_;  // empty: packets do not tell them
  std::optional<VideoDecoder> decoder_;
  int64_t position_ = 0;    // of the frame that comes next
  bool is_placed_ = false;  // whether the container is where position_ says
  bool may_seek_ = true;
  bool sought_ = false;
};

VideoInfo examine(FrameReader& reader) {
  const int64_t frames = reader.count();
  const VideoContainer& container = reader.container();
  if (frames == 0) throw without_frames(container.name());
  return {.frames = frames,
          .fps = frame_rate(container.stream()),
          .size = upright_size(container.stored_size(), container.orientation())};
}

class EncodedVideo final : public VideoFile::Source {
 public:
  EncodedVideo(const VideoInfo& info, std::unique_ptr<FrameReader> reader)
      : Source(info), reader_(std::move(reader)), orientation_(reader_->container().orientation()) {}

  void read(int64_t index, uint8_t* planes) override {
    const AVFrame& frame = reader_->at(index);
    const std::string& name = reader_->container().name();
    if (upright_size({frame.height, frame.width}, orientation_) != info().size) {
      throw data_error(
          "{}: frame {} is of {} x {} pixels, unlike the first ones; encode the video again or drop the sample", name,
          index, frame.width, frame.height);
    }
    write_upright_planes(converter_.convert(frame, name), orientation_, planes);
  }

 private:
  std::unique_ptr<FrameReader> reader_;
  Orientation orientation_;
  RgbConverter converter_;
};

}  // namespace

std::unique_ptr<VideoFile::Source> open_encoded_video(const io::Medium& video) {
  auto reader = std::make_unique<FrameReader>(video);
  const VideoInfo info = examine(*reader);
  return std::make_unique<EncodedVideo>(info, std::move(reader));
}

}  // namespace vlmtrain::image
