//! Small images, and one that only looks like one.

/// A PNG file of one red pixel.
pub const RED_PNG: &[u8] = include_bytes!("red.png");

/// The same in the form in which a Harness gives it to its provider.
pub const RED_PNG_URL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAA\
     AAAElFTkSuQmCC";

/// A JPEG file of eight times eight gray pixels.
pub const GRAY_JPEG: &[u8] = include_bytes!("gray.jpg");

/// The same in the form in which a Harness gives it to its provider.
pub const GRAY_JPEG_URL: &str = "data:image/jpeg;base64,/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC\
     AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAj/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAB//EABQQAQAAA\
     AAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AZH//2Q==";

/// A PNG file that is whole and has a size, whose pixels are no pixels.
pub const UNREADABLE_PNG: &[u8] = include_bytes!("unreadable.png");
