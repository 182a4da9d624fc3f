#pragma once

#include "vlmtrain/io/media_ref.h"
