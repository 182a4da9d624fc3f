#pragma once

#include "vlmtrain/io/temp_cleanup.h"
