#include "data/outline_cache.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::data {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// To be raised whenever a sample of the same record and files may have another shape.
constexpr int64_t kFormat = 6;

uint64_t number_of(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// The time of change is the system's own: a file that is replaced by one of the same size and date has another.
void add_file(ContentHash& hash, const fs::path& file) {
  struct stat status {};
  hash.add(file.native());
  if (stat(file.c_str(), &status) != 0) return;
  hash.add(static_cast<uint64_t>(status.st_size)).add(number_of(status.st_mtim)).add(number_of(status.st_ctim));
  if (!S_ISDIR(status.st_mode)) return;
  std::vector<fs::path> frames;
  std::error_code error;
  for (fs::directory_iterator entry(file, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_directory(error)) frames.push_back(entry->path());
  }
  std::ranges::sort(frames);
  for (const auto& frame : frames) {
    struct stat of_frame {};
    hash.add(frame.native());
    if (stat(frame.c_str(), &of_frame) != 0) continue;
    hash.add(static_cast<uint64_t>(of_frame.st_size)).add(number_of(of_frame.st_mtim)).add(number_of(of_frame.st_ctim));
  }
}

void add_medium(ContentHash& hash, const io::Medium& medium) {
  hash.add(medium.frames.size());
  for (const auto& frame : medium.frames) add_medium(hash, frame);
  hash.add(medium.path).add(medium.bytes ? 1U : 0U);
  if (medium.bytes) hash.add(*medium.bytes);
}

void add_files_of(const io::Medium& medium, std::vector<std::string>& files) {
  for (const auto& frame : medium.frames) add_files_of(frame, files);
  if (!medium.bytes && medium.frames.empty()) files.push_back(medium.path);
}

Json numbers_of(const Shrunk& shrunk) {
  return {shrunk.tokens,      shrunk.pixels,           shrunk.tokens_left,
          shrunk.pixels_left, shrunk.image_max_pixels, shrunk.frame_max_pixels};
}

Shrunk cached_shrunk(const Json& numbers) {
  return {.tokens = numbers.at(0),
          .pixels = numbers.at(1),
          .tokens_left = numbers.at(2),
          .pixels_left = numbers.at(3),
          .image_max_pixels = numbers.at(4),
          .frame_max_pixels = numbers.at(5)};
}

/// What is not bytes of three colours on a plane says so at the end.
Json numbers_of(const CachedShape& cached) {
  const SampleShape& shape = cached.shape;
  Json grids = Json::array();
  for (const auto& grid : shape.grids) grids.insert(grids.end(), {grid.frames, grid.rows, grid.columns});
  Json numbers = Json::array({cached.fingerprint, cached.file_state, shape.tokens, shape.label_tokens,
                              shape.image_tokens, shape.images, shape.pixel_rows, shape.row.height, shape.row.width,
                              shape.videos, shape.video_frames, cached.making_bytes, std::move(grids), cached.id,
                              cached.task, cached.files, cached.shrunk ? numbers_of(*cached.shrunk) : Json()});
  const PixelRow& row = shape.row;
  if (shape.volumes > 0 || row != PixelRow{.height = row.height, .width = row.width}) {
    numbers.push_back({row.dtype, row.channels, row.depth, shape.volumes});
  }
  return numbers;
}

CachedShape shape_from(const Json& numbers) {
  CachedShape cached{.fingerprint = numbers.at(0), .file_state = numbers.at(1)};
  SampleShape& shape = cached.shape;
  int64_t* const fields[] = {&shape.tokens,       &shape.label_tokens, &shape.image_tokens, &shape.images,
                             &shape.pixel_rows,   &shape.row.height,   &shape.row.width,    &shape.videos,
                             &shape.video_frames, &cached.making_bytes};
  size_t place = 2;
  for (int64_t* field : fields) *field = numbers.at(place++);
  const Json& grids = numbers.at(place);
  for (size_t grid = 0; grid < grids.size(); grid += 3) {
    shape.grids.push_back({grids.at(grid), grids.at(grid + 1), grids.at(grid + 2)});
  }
  cached.id = numbers.at(++place);
  cached.task = numbers.at(++place);
  cached.files = numbers.at(++place).get<std::vector<std::string>>();
  if (const Json& shrunk = numbers.at(++place); !shrunk.is_null()) cached.shrunk = cached_shrunk(shrunk);
  if (numbers.size() > ++place) {
    const Json& other = numbers.at(place);
    shape.row.dtype = other.at(0);
    shape.row.channels = other.at(1);
    shape.row.depth = other.at(2);
    shape.volumes = other.at(3);
  }
  return cached;
}

Json header_of(const std::string& key, uint64_t stamp, std::string_view body) {
  return {{"format", kFormat}, {"key", key}, {"stamp", stamp}, {"content", ContentHash().add(stamp).add(body).text()}};
}

/// Nothing where a line is no header.
std::optional<uint64_t> stamp_in(std::string_view line) {
  const Json header = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || !header.contains("stamp") || !header["stamp"].is_number_unsigned()) return std::nullopt;
  return header["stamp"].get<uint64_t>();
}

CachedShapes shapes_from(std::string_view body) {
  CachedShapes shapes;
  shapes.reserve(static_cast<size_t>(std::ranges::count(body, '\n')));
  while (!body.empty()) {
    const size_t end = body.find('\n');
    const Json line = Json::parse(body.substr(0, end));
    shapes.push_back(line.is_null() ? std::nullopt : std::optional{shape_from(line)});
    body.remove_prefix(end + 1);
  }
  return shapes;
}

}  // namespace

uint64_t fingerprint_of(const io::Record& record) {
  ContentHash hash;
  hash.add(record.id).add(record.place).add(record.task).add(record.problem);
  hash.add(record.turns.size());
  for (const auto& turn : record.turns) hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
  for (const auto* media : {&record.images, &record.videos}) {
    hash.add(media->size());
    for (const auto& medium : *media) add_medium(hash, medium);
  }
  return hash.value();
}

std::vector<std::string> files_of(const io::Record& record) {
  std::vector<std::string> files;
  for (const auto* media : {&record.images, &record.videos}) {
    for (const auto& medium : *media) add_files_of(medium, files);
  }
  return files;
}

uint64_t state_of(const std::vector<std::string>& files) {
  ContentHash hash;
  for (const auto& file : files) add_file(hash, file);
  return hash.value();
}

OutlineCache read_outline_cache(const std::filesystem::path& file, const std::string& key) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return {};
  std::ifstream stream(file, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  const size_t end = content.find('\n');
  if (end == std::string::npos || content.back() != '\n') return {};
  constexpr size_t kLongestHeader = 10'000;
  const std::string_view header = std::string_view(content).substr(0, end);
  const std::string_view body = std::string_view(content).substr(end + 1);
  const auto stamp = end < kLongestHeader ? stamp_in(header) : std::nullopt;
  // The hash is compared before anything of the body is looked at, so that a damaged file cannot mislead a parser.
  if (!stamp || header != header_of(key, *stamp, body).dump()) return {};
  try {
    return {.stamp = *stamp, .shapes = shapes_from(body)};
  } catch (const Json::exception&) {
    return {};
  }
}

void write_outline_cache(const std::filesystem::path& file, const std::string& key, uint64_t stamp,
                         const CachedShapes& shapes) {
  std::string body;
  for (const auto& shape : shapes) {
    body += shape ? numbers_of(*shape).dump(-1, ' ', false, Json::error_handler_t::replace) : "null";
    body += '\n';
  }
  try {
    io::AtomicFile whole(file);
    whole.write(header_of(key, stamp, body).dump() + "\n");
    whole.write(body);
    whole.commit();
  } catch (const std::exception& problem) {
    spdlog::info("what was found out about the data is not kept for the next start: {}", problem.what());
  }
}

}  // namespace vlmtrain::data
