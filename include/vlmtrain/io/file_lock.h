#pragma once

#include "vlmtrain/io/file.h"
