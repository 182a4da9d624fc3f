#include "data/outline_cache.h"

#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <system_error>

#include "data/shrunk_numbers.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::data {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// To be raised whenever a sample of the same record and files may have another shape.
constexpr int64_t kFormat = 9;

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
  hash.add(medium.path).add(medium.bytes ? 1U : 0U).add(medium.is_volume ? 1U : 0U).add(medium.modality);
  if (medium.fps != 0) hash.add(fmt::format("{} frames a second", medium.fps));
  if (medium.bytes) hash.add(*medium.bytes);
}

void add_rle(ContentHash& hash, const io::Rle& rle) {
  hash.add(static_cast<uint64_t>(rle.height)).add(static_cast<uint64_t>(rle.width)).add(rle.counts.size());
  for (const int64_t count : rle.counts) hash.add(static_cast<uint64_t>(count));
}

void add_files_of(const io::Medium& medium, std::vector<std::string>& files) {
  for (const auto& frame : medium.frames) add_files_of(frame, files);
  if (!medium.bytes && medium.frames.empty()) files.push_back(medium.path);
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
  const bool has_masks = shape.masks > 0;
  if (has_masks || shape.volumes > 0 || row != PixelRow{.height = row.height, .width = row.width}) {
    numbers.push_back({row.dtype, row.channels, row.depth, shape.volumes});
  }
  if (has_masks) numbers.push_back({shape.masks, shape.mask_pictures, shape.mask_side});
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
  if (const Json& shrunk = numbers.at(++place); !shrunk.is_null()) cached.shrunk = shrunk_in(shrunk);
  if (numbers.size() > ++place) {
    const Json& other = numbers.at(place);
    shape.row.dtype = other.at(0);
    shape.row.channels = other.at(1);
    shape.row.depth = other.at(2);
    shape.volumes = other.at(3);
  }
  if (numbers.size() > ++place) {
    const Json& masks = numbers.at(place);
    shape.masks = masks.at(0);
    shape.mask_pictures = masks.at(1);
    shape.mask_side = masks.at(2);
  }
  return cached;
}

Json header_of(const std::string& key, uint64_t stamp, int64_t samples) {
  return {{"format", kFormat}, {"key", key}, {"stamp", stamp}, {"samples", samples}};
}

/// What is behind the header is hashed in blocks of so many bytes; the hash is the file's last line.
constexpr size_t kBlock = size_t{1} << 20U;
constexpr std::streamoff kHashLine = 17;

}  // namespace

uint64_t fingerprint_of(const io::Record& record) {
  ContentHash hash;
  hash.add(record.id).add(record.task).add(record.problem);
  hash.add(record.turns.size());
  for (const auto& turn : record.turns) hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
  for (const auto* media : {&record.images, &record.videos}) {
    hash.add(media->size());
    for (const auto& medium : *media) add_medium(hash, medium);
  }
  hash.add(record.mask_problem).add(record.masks.size());
  for (const auto& mask : record.masks) {
    add_medium(hash, mask.file);
    if (mask.rle) add_rle(hash, *mask.rle);
    hash.add(mask.structure).add(static_cast<uint64_t>(mask.image));
    hash.add(mask.value ? "value" : "").add(static_cast<uint64_t>(mask.value.value_or(0)));
  }
  return hash.value();
}

std::vector<std::string> files_of(const io::Record& record) {
  std::vector<std::string> files;
  for (const auto* media : {&record.images, &record.videos}) {
    for (const auto& medium : *media) add_files_of(medium, files);
  }
  for (const auto& mask : record.masks) {
    if (!mask.rle) add_files_of(mask.file, files);
  }
  return files;
}

uint64_t state_of(const std::vector<std::string>& files) {
  ContentHash hash;
  for (const auto& file : files) add_file(hash, file);
  return hash.value();
}

std::string line_of(const std::optional<CachedShape>& shape) {
  return shape ? numbers_of(*shape).dump(-1, ' ', false, Json::error_handler_t::replace) : "null";
}

std::optional<CachedShape> shape_in(std::string_view line) {
  const Json numbers = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!numbers.is_array()) return std::nullopt;
  try {
    return shape_from(numbers);
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

OutlineCacheReader::OutlineCacheReader(const fs::path& file, const std::string& key) {
  read_header(file, key);
  if (samples_ > 0 && is_whole()) {
    stream_.clear();
    stream_.seekg(body_);
  } else {
    stamp_ = 0;
    samples_ = 0;
  }
}

void OutlineCacheReader::read_header(const fs::path& file, const std::string& key) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  stream_.open(file, std::ios::binary);
  std::string line(10'000, '\0');
  if (!stream_.getline(line.data(), std::ssize(line))) return;
  line.resize(static_cast<size_t>(stream_.gcount()) - 1);
  const Json header = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto number = [&header](const char* name) -> uint64_t {
    return header.is_object() && header.contains(name) && header[name].is_number_unsigned()
               ? header[name].get<uint64_t>()
               : 0;
  };
  const auto samples = static_cast<int64_t>(number("samples"));
  if (line != header_of(key, number("stamp"), samples).dump()) return;
  stamp_ = number("stamp");
  samples_ = samples;
  body_ = stream_.tellg();
}

bool OutlineCacheReader::is_whole() {
  stream_.seekg(0, std::ios::end);
  auto left = stream_.tellg() - body_ - kHashLine;
  if (left < 0) return false;
  stream_.seekg(body_);
  ContentHash hash;
  hash.add(stamp_);
  for (std::string block; left > 0; left -= std::ssize(block)) {
    block.resize(std::min(kBlock, static_cast<size_t>(left)));
    if (!stream_.read(block.data(), std::ssize(block))) return false;
    hash.add(block);
  }
  std::string line;
  return std::getline(stream_, line) && line == hash.text();
}

std::string OutlineCacheReader::next() {
  std::string line;
  if (read_ < samples_ && std::getline(stream_, line)) ++read_;
  return line;
}

void OutlineCacheReader::repeat(OutlineCacheWriter& writer, int64_t but) {
  if (read_ <= but) return;
  const auto place = stream_.tellg();
  stream_.seekg(body_);
  std::string line;
  for (int64_t i = 0; i < read_ - but && std::getline(stream_, line); ++i) writer.add(line);
  stream_.seekg(place);
}

OutlineCacheWriter::OutlineCacheWriter(const fs::path& file, const std::string& key, uint64_t stamp, int64_t samples) {
  attempt([&] {
    file_.emplace(file);
    file_->write(header_of(key, stamp, samples).dump() + "\n");
  });
  hash_.add(stamp);
}

void OutlineCacheWriter::add(std::string_view line) {
  block_ += line;
  block_ += '\n';
  while (block_.size() >= kBlock) write_block();
}

void OutlineCacheWriter::commit() {
  if (!block_.empty()) write_block();
  if (!file_) return;
  attempt([&] {
    file_->write(hash_.text() + "\n");
    file_->commit();
  });
}

void OutlineCacheWriter::write_block() {
  const auto block = std::string_view(block_).substr(0, kBlock);
  hash_.add(block);
  if (file_) attempt([&] { file_->write(block); });
  block_.erase(0, block.size());
}

template <class Act>
void OutlineCacheWriter::attempt(const Act& act) {
  try {
    act();
  } catch (const std::exception& problem) {
    file_.reset();
    spdlog::info("what was found out about the data is not kept for the next start: {}", problem.what());
  }
}

}  // namespace vlmtrain::data
