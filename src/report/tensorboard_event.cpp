#include "report/tensorboard_event.h"

#include <bit>

#include "report/crc32c.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::report {

namespace {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string little_endian(T number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

/// A message as it is put together; fields in the order of their numbers, as all writers have them.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, WireType::kVarint);
    put_varint(value);
    return *this;
  }
  Message& number(int field, double value) {
    key(field, WireType::kFixed64);
    bytes_ += little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& number(int field, float value) {
    key(field, WireType::kFixed32);
    bytes_ += little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, WireType::kBytes);
    put_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, WireType type) { put_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  void put_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// event.proto, message Event
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
// summary.proto, messages Summary and Summary.Value
constexpr int kValue = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kImage = 4;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;

/// Zeros are left out, as protocol buffers do it.
Message event_at(double time, int64_t step) {
  Message event;
  event.number(kWallTime, time);
  if (step != 0) event.varint(kStep, static_cast<uint64_t>(step));
  return event;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace

std::string version_event(double time) {
  return event_at(time, 0).text(kFileVersion, "brain.Event:2").bytes();
}

std::string session_start_event(double time, int64_t step) {
  constexpr int kStatus = 1;
  constexpr uint64_t kStart = 1;
  return event_at(time, step).message(kSessionLog, Message().varint(kStatus, kStart)).bytes();
}

std::string scalars_event(double time, int64_t step, const std::map<std::string, double>& by_tag) {
  Message summary;
  for (const auto& [tag, value] : by_tag) {
    summary.message(kValue, Message().text(kTag, printable(tag)).number(kSimpleValue, static_cast<float>(value)));
  }
  return event_at(time, step).message(kSummary, summary).bytes();
}

std::string text_event(double time, int64_t step, std::string_view tag, std::string_view markdown) {
  // A TensorProto of one string, which the metadata gives to the text plugin (SummaryMetadata.plugin_data.plugin_name).
  constexpr uint64_t kString = 7;
  const Message shape = Message().message(2, Message().varint(1, 1));
  const Message tensor = Message().varint(1, kString).message(2, shape).text(8, printable_lines(markdown));
  const Message metadata = Message().message(1, Message().text(1, "text"));
  const Message value = Message().text(kTag, printable(tag)).message(kTensor, tensor).message(kMetadata, metadata);
  return event_at(time, step).message(kSummary, Message().message(kValue, value)).bytes();
}

std::string image_event(double time, int64_t step, std::string_view tag, std::string_view bytes,
                        image::ImageSize size) {
  constexpr uint64_t kRgb = 3;
  const Message image = Message()
                            .varint(1, static_cast<uint64_t>(size.height))
                            .varint(2, static_cast<uint64_t>(size.width))
                            .varint(3, kRgb)
                            .text(4, bytes);
  const Message value = Message().text(kTag, printable(tag)).message(kImage, image);
  return event_at(time, step).message(kSummary, Message().message(kValue, value)).bytes();
}

std::string framed(std::string_view event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  return length + little_endian(masked_crc(length)) + std::string(event) + little_endian(masked_crc(event));
}

}  // namespace vlmtrain::report
